"""POP's factors, in English."""

from __future__ import annotations

from perfscope.vocabulary.efficiency import PopFactor

TITLES = {
    PopFactor.PARALLEL: "Parallel efficiency",
    PopFactor.LOAD_BALANCE: "Load balance",
    PopFactor.LB_IN: "inside hosts",
    PopFactor.LB_OUT: "across hosts",
    PopFactor.COMMUNICATION: "Communication efficiency",
    PopFactor.SERIALISATION: "Serialization",
    PopFactor.TRANSFER: "Transfer",
    PopFactor.COMPUTATION_SCALING: "Computation scaling",
    PopFactor.GLOBAL: "Global efficiency",
}
