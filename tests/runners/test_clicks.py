"""Recommendation models: their data and its best AUC, and tables divided over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.clicks import SyntheticClicks
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.learning.evaluation import HeldOutSet, area_under_curve
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import describe_model, plan
from perfscope.runners.schemes.emb_tables import table_owners
from perfscope.runners.schemes.local import cross_entropy
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import Alone, World
from tests.runners.mp_cases import config_of
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

CLICKS: dict[str, Any] = {
    "model": "dlrm-nano",
    "input_shape": (12,),
    "num_classes": 2,
    "steps": 4,
    "batch": 12,
}
DIVIDED = ("emb.table", "emb.row", "emb.column")
ON_TWO: list[dict[str, Any]] = [
    *({"scheme": scheme, **CLICKS} for scheme in DIVIDED),
    {"scheme": "emb.table", **CLICKS, "optimizer": "lars"},
    {"scheme": "emb.column", **CLICKS, "optimizer": "adamw", "momentum": 0.0, "learning_rate": 1e-3},
    *({"scheme": scheme, **CLICKS} for scheme in ("dp.packed", "dp.perlayer", "dp.ddp", "dp.fsdp")),
    *({"scheme": scheme, **CLICKS} for scheme in ("dp.dist_update", "pp.gpipe", "ps.sync")),
    {"scheme": "mesh", **CLICKS},
]


def clicks(**settings: Any) -> BenchConfig:
    return config_of(1, **{"scheme": "serial", **CLICKS, **settings})


def feed_of(config: BenchConfig) -> SyntheticClicks:
    feed = open_feed(config)
    assert isinstance(feed, SyntheticClicks)
    return feed


@pytest.mark.parametrize("noise", [None, 0.3])
def test_the_known_best_is_that_of_ranking_by_the_probabilities_themselves(noise: float | None) -> None:
    """The model that knows how clicks are made, on many of them."""
    config = clicks(label_noise=noise, batch=60_000)
    feed = feed_of(config)
    seen: list[torch.Tensor] = []
    plain = feed._probability

    def noted(signs: torch.Tensor) -> torch.Tensor:
        seen.append(plain(signs))
        return seen[-1]

    feed._probability = noted  # type: ignore[method-assign]
    clicked = feed.samples(0, 60_000, 0, 60_000).targets
    (chance,) = seen
    best = feed_of(config).best
    assert best.auc is not None and best.auc > best.accuracy > 0.5
    assert area_under_curve(chance, clicked == 1) == pytest.approx(best.auc, abs=0.006)
    right = ((chance > 0.5) == (clicked == 1)).double().mean()
    assert float(right) == pytest.approx(best.accuracy, abs=0.006)
    scores = torch.stack((1 - chance, chance), dim=1).log()
    assert float(cross_entropy(scores, clicked)) == pytest.approx(best.loss, abs=0.008)


def test_parts_of_a_batch_are_the_batch_and_categories_are_rows_of_their_tables() -> None:
    config = clicks(batch=600)
    feed, whole = feed_of(config), feed_of(config).batch(3, 0, 1)
    parts = [feed.batch(3, part, 4) for part in range(4)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    categories = whole.inputs[:, 4:].long()
    rows = torch.tensor([table.weight_shape[0] for table in tables(config)])
    assert bool((categories >= 0).all()) and bool((categories < rows).all())
    assert torch.equal(categories.to(whole.inputs.dtype), whole.inputs[:, 4:])
    assert not torch.equal(held_out(config, num=600).inputs, whole.inputs)


def tables(config: BenchConfig) -> list[Any]:
    return [layer for layer in describe_model(config).layers if layer.kind == "embedding"]


def test_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(7, (80,), generator=generator).float()  # many equal ones
    positive = torch.rand(80, generator=generator) < 0.3
    high, low = scores[positive][:, None], scores[~positive][None]
    expected = ((high > low).double() + (high == low).double() / 2).mean()
    assert area_under_curve(scores, positive) == pytest.approx(float(expected), abs=1e-12)
    assert area_under_curve(scores, positive | True) is None


def test_the_interaction_is_the_products_of_all_pairs() -> None:
    config = clicks()
    model, batch = build_model(config), open_feed(config).batch(0, 0, 1)
    vectors = model.features(batch.inputs)
    dense = model.features.bottom(batch.inputs[:, :4])
    assert torch.equal(vectors[:, 0], dense)
    for number in range(8):
        table = model.features.tables[number].weight
        assert torch.equal(vectors[:, 1 + number], table[batch.inputs[:, 4 + number].long()])
    found = model.interact(vectors)
    products = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(9) for j in range(i + 1, 9)]
    assert torch.allclose(found, torch.cat((dense, torch.stack(products, 1)), 1), rtol=0, atol=1e-12)


def test_the_loss_is_that_of_one_logit() -> None:
    config = clicks()
    model, batch = build_model(config), open_feed(config).batch(0, 0, 1)
    with torch.no_grad():
        logits, found = model[:-1](batch.inputs)[:, 0], cross_entropy(model(batch.inputs), batch.targets)
        expected = nn.functional.binary_cross_entropy_with_logits(logits, batch.targets.double())
    assert float(found) == pytest.approx(float(expected), abs=1e-12)


def test_flops_are_those_of_the_weights_and_the_products() -> None:
    """2 per weight of the MLPs and 2 F^2 d for the products of F vectors; a look-up multiplies nothing."""
    shape = describe_model(clicks())
    multiplying = sum(layer.num_weights for layer in shape.layers if layer.kind == "linear")
    assert multiplying == 4 * 64 + 64 * 16 + (16 + 36) * 64 + 64 * 32 + 32
    assert shape.flops() == 2 * multiplying + 2 * 81 * 16
    each = 2 * (64 + 16) + 8 * 16 + (16 + 36) + 2 * (64 + 32) + 1 + 2
    assert shape.activations == each  # rectifiers and layers of the MLPs, rows, products, scores


@pytest.fixture(scope="module")
def on_two() -> Iterator[list[list[dict[str, Any]]]]:
    yield run_ranks(2, "tests.runners.mp_cases:against_serial", cases=ON_TWO)


@pytest.mark.parametrize("index", range(len(ON_TWO)), ids=[one["scheme"] for one in ON_TWO])
def test_schemes_train_clicks_as_one_process_does_and_send_what_they_predict(
    index: int, on_two: list[list[dict[str, Any]]]
) -> None:
    for answers in on_two:
        assert answers[index]["calls"] == answers[index]["expected"]
    assert on_two[0][index]["moved"] > 1e-3
    assert on_two[0][index]["difference"] < 1e-12


def test_three_ranks_share_eight_tables_unequally() -> None:
    cases = [{"scheme": scheme, **CLICKS} for scheme in ("emb.table", "emb.row")]
    found = run_ranks(3, "tests.runners.mp_cases:against_serial", cases=cases)
    sent = []
    for answers in found:
        assert all(answer["calls"] == answer["expected"] for answer in answers)
        sent.append(max(size for name, _, _, size in answers[0]["calls"] if name == "all_to_all"))
    assert len(set(sent)) > 1  # the rank of more tables sends more rows
    assert all(answer["difference"] < 1e-12 for answer in found[0])


def test_large_tables_are_placed_first() -> None:
    assert table_owners([10, 1000, 400, 300, 200], 2) == [1, 0, 1, 1, 1]
    assert sorted(table_owners([5] * 6, 3)) == [0, 0, 1, 1, 2, 2]


def test_a_model_of_clicks_comes_near_the_best_and_a_target_of_auc_ends_the_run() -> None:
    config = clicks(
        **{"steps": 600, "batch": 256, "dtype": "float32", "momentum": 0.0, "input_shape": (16,)},
        **{"optimizer": "adamw", "learning_rate": 0.01, "target": "auc=0.7", "evaluate_every": 25},
    )
    config = replace(config, held_out=1000)
    best = feed_of(config).best.auc
    outcome = train_here(World(Alone(), 0, torch.device("cpu")), config)
    rows = outcome.learning["evaluations"]
    assert outcome.learning["target_step"] == rows[-1]["step"] < 600
    assert best is not None and best > rows[-1]["auc"] >= 0.7 > rows[-2]["auc"]
    assert outcome.learning["best"]["auc"] == best


def test_other_models_of_two_classes_have_an_auc_and_those_of_more_have_none() -> None:
    for classes in (2, 3):
        config = clicks(model="table_mlp", num_classes=classes)
        figures = HeldOutSet(plan(config), torch.device("cpu")).evaluate(build_model(config))
        assert (figures.auc is None) == (classes == 3)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scheme": "emb.table", "model": "table_mlp"}, "it takes clicks inputs, not table"),
    ({"scheme": "mp.fc_tp"}, "it takes image and tokens and table inputs, not clicks"),
    ({"scheme": "cp.gather"}, "cp.gather cannot train dlrm-nano"),
    ({"scheme": "serial", "num_ranks": 1, "num_classes": 16}, "use --classes 2, not 16"),
    ({"scheme": "serial", "num_ranks": 1, "input_shape": (8,)}, "use an --input of at least 9"),
    ({"scheme": "serial", "num_ranks": 1, "input_shape": (3, 8, 8)}, "a number of features, dense and"),
    ({"scheme": "emb.table", "num_ranks": 9, "batch": 9}, "cannot share the 8 tables .* or emb.row"),
    ({"scheme": "emb.column", "num_ranks": 3}, "cannot share embeddings of width 16 equally"),
    ({"scheme": "emb.row", "num_ranks": 900, "batch": 900}, "has 1600 rows, which 900 ranks cannot share"),
    ({"scheme": "emb.row", "optimizer": "lamb", "momentum": 0.0}, "cannot take --optimizer lamb"),
    ({"scheme": "emb.table", "clip_norm": 1.0}, "no rank has the whole gradient"),
    ({"scheme": "emb.table", "accumulate": 2}, "cannot take --accumulate 2"),
    ({"scheme": "dp.packed", "data": "/"}, "/ cannot be read: Is a directory"),
    ({"scheme": "dp.packed", "model": "table_mlp", "num_classes": 8, "target": "auc=0.8"}, "needs 2 classes"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_is_one_line(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BenchError, match=reason) as error:
        plan(replace(config_of(2, scheme="serial", **CLICKS), **settings))
    assert "\n" not in str(error.value)


def test_the_layout_of_a_run_names_the_rank_of_each_table() -> None:
    job = plan(config_of(2, scheme="emb.table", **CLICKS))
    owners = find_scheme("emb.table").layout(job)["tables"]
    assert owners["features.tables.7"] == 0 and set(owners.values()) == {0, 1} and len(owners) == 8
