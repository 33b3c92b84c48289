"""What is known of a frame is true: its partitions hold just the rows that they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import pytest
from frames import assert_placed, blocks_of, sample, split

from chash_partition import chash_repartition

P = 7
FRAME = sample()
OTHER = sample(rows=60, seed=1).rename(columns={"y": "w", "row": "v"})[["k", "w", "v"]]

pytestmark = pytest.mark.usefixtures("local")


def place(on: Any = "k", frame: Any = FRAME, **how: Any) -> dd.DataFrame:
    return split(frame).pipe(chash_repartition, on, **{"npartitions": P, **how})


def other(df: dd.DataFrame, on: str = "k") -> dd.DataFrame:
    frame = OTHER.rename(columns={"k": on})
    return split(frame).pipe(chash_repartition, on, layout=df.chash.layout.rename(on))


def _set(df: dd.DataFrame, column: str) -> dd.DataFrame:
    df = df.copy()
    df[column] = df.y + 1
    return df


# What is done to a frame placed by "k" -> the key column of the result.
KEPT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "nothing": ("k", lambda df: df),
    "filter": ("k", lambda df: df[df.x > 0]),
    "filter by the key": ("k", lambda df: df[df.k.isin([1, 2])]),
    "filter by the whole": ("k", lambda df: df[df.x > df.x.mean()]),
    "loc by a condition": ("k", lambda df: df.loc[df.x > 0]),
    "loc by a condition and columns": ("k", lambda df: df.loc[df.x > 0, ["k", "y"]]),
    "loc of columns": ("k", lambda df: df.loc[:, ["k", "y"]]),
    "query": ("k", lambda df: df.query("x > 0 and k > 2")),
    "isin another": ("k", lambda df: df.assign(x=df.x.isin([1, 2]))),
    "filter by isin": ("k", lambda df: df[df.x.isin([*range(20)]) | df.k.isin([1, 2])]),
    "clip another": ("k", lambda df: df.assign(x=df.x.clip(0, 10))),
    "map another": ("k", lambda df: df.assign(x=df.x.map(lambda v: -v, meta=("x", "int64")))),
    "replace in another": ("k", lambda df: df.assign(x=df.x.replace(1, 2), y=df.y.abs())),
    "apply by row": (
        "k",
        lambda df: df.assign(z=df.apply(lambda row: row.x + row.k, axis=1, meta=("z", "int64"))),
    ),
    "from the key": ("k", lambda df: df.assign(z=df.k % 3, s=df.k.astype(str).str.len())),
    "with the index": ("k", lambda df: df.reset_index().rename(columns={"index": "i"})),
    "round another": ("k", lambda df: df.round({"x": -1})),
    "columns by type": ("k", lambda df: df.select_dtypes("number")),
    "drop duplicates": ("k", lambda df: df.drop_duplicates(subset=["k", "x"])),
    "explode another": (
        "k",
        lambda df: df.assign(z=df.x.map(lambda v: [v, v], meta=("z", object))).explode("z"),
    ),
    "key as a series and back": ("id", lambda df: df.k.to_frame("id")),
    "columns": ("k", lambda df: df[["x", "k"]]),
    "key alone": ("k", lambda df: df[["k"]]),
    "drop another": ("k", lambda df: df.drop(columns=["x", "y"])),
    "drop another, one label": ("k", lambda df: df.drop(columns="x")),
    "assign another": ("k", lambda df: df.assign(x=df.k, new=1)),
    "set another": ("k", lambda df: _set(df, "x")),
    "cast another": ("k", lambda df: df.astype({"x": "float64"})),
    "fill another": ("k", lambda df: df.fillna({"x": 1})),
    "drop nulls": ("k", lambda df: df.dropna()),
    "drop nulls of a column": ("k", lambda df: df.dropna(subset=["x"])),
    "rename another": ("k", lambda df: df.rename(columns={"x": "z"})),
    "rename the key": ("id", lambda df: df.rename(columns={"k": "id"})),
    "rename by a function": ("K", lambda df: df.rename(columns=str.upper)),
    "swap": ("x", lambda df: df.rename(columns={"k": "x", "x": "k"})),
    "prefix": ("p_k", lambda df: df.add_prefix("p_")),
    "suffix": ("k_s", lambda df: df.add_suffix("_s")),
    "rename, then another in its place": ("id", lambda df: df.rename(columns={"k": "id"}).assign(k=1)),
    "persist": ("k", lambda df: df.chash.persist()),
    "persist what was filtered": ("id", lambda df: df[df.x > 0].rename(columns={"k": "id"}).chash.persist()),
    "persist and optimize": ("k", lambda df: df.chash.persist().optimize()),
    "merge with its like": ("k", lambda df: df.merge(other(df), on="k")),
    "left merge": ("k", lambda df: df.merge(other(df), on="k", how="left")),
    "right merge": ("k", lambda df: df.merge(other(df), on="k", how="right")),
    "outer merge": ("k", lambda df: df.merge(other(df), on="k", how="outer")),
    "inner merge, other name": ("k", lambda df: df.merge(other(df, "id"), left_on="k", right_on="id")),
    "left merge, other name": (
        "k",
        lambda df: df.merge(other(df, "id"), left_on="k", right_on="id", how="left"),
    ),
    "right merge, other name": (
        "id",
        lambda df: df.merge(other(df, "id"), left_on="k", right_on="id", how="right"),
    ),
    "merge with a plain frame": ("k", lambda df: df.chash.merge(split(OTHER), how="outer")),
    "several": (
        "id",
        lambda df: df[df.x > -20].assign(z=df.x)[["z", "k"]].rename(columns={"k": "id"}).dropna(),
    ),
}


@pytest.mark.parametrize("how", KEPT)
def test_what_keeps_a_frame_placed(how: str) -> None:
    key, function = KEPT[how]
    placed = place()
    got = function(placed)
    layout = got.chash.layout
    assert layout == placed.chash.layout.rename(key)
    assert got.npartitions == P
    blocks = blocks_of(got)
    assert sum(map(len, blocks)) > 0
    assert_placed(blocks, layout)


LOST: dict[str, Callable[[Any], Any]] = {
    "key dropped": lambda df: df.drop(columns="k"),
    "key left out": lambda df: df[["x", "y"]],
    "key assigned": lambda df: df.assign(k=df.k + 1),
    "key set": lambda df: _set(df, "k"),
    "key filled": lambda df: df.fillna({"k": 1}),
    "all filled": lambda df: df.fillna(1),
    "dropped, then another in its place": lambda df: df.drop(columns="k").rename(columns={"x": "k"}),
    "left out, then another in its place": lambda df: df[["x"]].rename(columns={"x": "k"}),
    "renamed over": lambda df: df[["k", "x"]].rename(columns={"k": "old"})[["x"]].rename(columns={"x": "k"}),
    "blocks mapped": lambda df: df.map_partitions(lambda block: block),
    "arithmetic": lambda df: df + 1,
    "where": lambda df: df.where(df.x > 0, 2),
    "mask": lambda df: df.mask(df.x > 0, 2),
    "clip": lambda df: df.clip(0, 5),
    "filter by a frame": lambda df: df[df > 6],
    "filter by a frame, of assigned": lambda df: df.assign(z=1)[df.assign(z=1) > 6],
    "isin": lambda df: df.isin([1, 2]),
    "mapped by value": lambda df: df.map(lambda v: v + 1, meta=df._meta),
    "replaced": lambda df: df.replace(1, 2),
    "key cast": lambda df: df.astype({"k": "str"}),
    "all cast": lambda df: df.astype("float64"),
    "key rounded": lambda df: df.round(-1),
    "key exploded": lambda df: df.explode("k"),
    "filled from the row before": lambda df: df.ffill(),
    "moved down": lambda df: df.shift(1),
    "melted": lambda df: df.melt(id_vars=["x"], value_vars=["k"], value_name="q").rename(columns={"q": "k"}),
    "by another index": lambda df: df.set_index("row"),
    "sampled": lambda df: df.sample(frac=0.9, random_state=0),
    "first rows": lambda df: df.head(3, compute=False),
    "largest": lambda df: df.nlargest(3, "x"),
    "split": lambda df: df.random_split([0.5, 0.5], random_state=0)[0],
    "transformed": lambda df: df.groupby("k")[["x"]].transform("max", meta=df._meta[["x"]]).assign(k=1),
    "groups applied": lambda df: df.groupby("k").apply(lambda g: g, meta=df._meta),
    "fewer partitions": lambda df: df.repartition(npartitions=3),
    "more partitions": lambda df: df.repartition(npartitions=9),
    "fewer, then as many": lambda df: df.repartition(npartitions=3).repartition(npartitions=P),
    "some partitions": lambda df: df.partitions[2:],
    "partitions the other way round": lambda df: df.partitions[::-1],
    "shuffled": lambda df: df.shuffle("k"),
    "sorted": lambda df: df.sort_values("row"),
    "concatenated": lambda df: dd.concat([df, df]),
    "grouped": lambda df: df.groupby("k").agg({"x": "sum"}).reset_index(),
    "persisted plainly": lambda df: df.persist(),
    "merged with a plain frame": lambda df: df.merge(split(OTHER), on="k"),
    "merged by another column": lambda df: df.merge(split(OTHER), left_on="x", right_on="w"),
    "merged outer, other name": lambda df: df.merge(other(df, "id"), left_on="k", right_on="id", how="outer"),
    "merged into another layout": lambda df: df.merge(place(frame=OTHER, seed=1), on="k"),
    "suffixed by a merge": lambda df: df.merge(
        other(df, "id").assign(k=1), left_on="k", right_on="id", suffixes=("_a", "_b")
    ),
    "deleted and remade by merging": lambda df: df.drop(columns="k").merge(
        split(OTHER), left_on="x", right_on="w"
    ),
}


@pytest.mark.parametrize("how", LOST)
def test_what_does_not_keep_a_frame_placed(how: str) -> None:
    with pytest.raises(ValueError, match=r"not placed.*chash_repartition"):
        _ = LOST[how](place()).chash


def test_of_several_keys_each_must_stay() -> None:
    placed = place(["k", "j"])
    renamed = placed.rename(columns={"j": "k", "k": "j"})
    assert renamed.chash.layout.on == ("j", "k")
    assert_placed(blocks_of(renamed), renamed.chash.layout)
    for changed in (placed.drop(columns="j"), placed.assign(j=1), placed[["k", "x"]]):
        with pytest.raises(ValueError, match="not placed"):
            _ = changed.chash


def test_a_label_given_twice_is_not_known() -> None:
    with pytest.raises(ValueError, match="not placed"):
        _ = place().rename(columns={"x": "k"}).chash
