"""What is said with advice by published lemmas."""

from __future__ import annotations

from perfscope.vocabulary.lemmas import Gap, Quantity

SOURCE = "Zou et al. 2017, arXiv 1709.06622"
FORMULAS = {
    Quantity.WORKERS: "G = (1 + R - a) / (a R), R = overhead / (workers x compute)",
    Quantity.MINIBATCH: "B = overhead / (compute per sample x (1 - a) / (a G - 1)), G as in the run",
    Quantity.SERVERS: "N >= 2 x weights x workers / (bandwidth x compute)",
}
TITLES = {
    Quantity.WORKERS: "Workers, at most",
    Quantity.MINIBATCH: "Samples per step, at least",
    Quantity.SERVERS: "Parameter servers, at least",
}
GAPS = {
    Gap.NOT_TRACED: "no step was traced; record a run with a traced window and step marks",
    Gap.NOT_DATA_PARALLEL: "the lemma is of data parallelism, and the run divides the model, too",
    Gap.NO_COMPUTE: "the traced steps have no compute",
    Gap.NO_OVERHEAD: "the run has no overhead: the lemma sets no limit",
    Gap.ONE_WORKER: "so few workers reach this efficiency with any overhead",
    Gap.BATCH_NOT_KNOWN: "the samples per step are not known; record with --samples-per-step",
    Gap.WEIGHTS_NOT_KNOWN: "the bytes of the weights are not known: not a bench run in float32 or float64",
    Gap.NO_BANDWIDTH: "no traced call has both a size and a transfer time",
}
MEMORY_NOT_USED = (
    "the limit of memory on samples per step is missing: bytes of activations per sample are not recorded"
)
