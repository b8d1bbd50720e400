"""`pretrieve plan`: what a recipe would do and cost, stage by stage, without doing it.

Neither data nor weights need be here. Tokens and FLOPs are upper bounds, since every text is taken to fill its
`max_tokens`. Disk and hours stand only where this store holds the like, which is named below the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from flows.chain.chain import chain, check
from flows.chain.retriever_rounds import expanded
from flows.chain.transfer import suite_of
from flows.recipe.load import load_recipe
from flows.recipe.schema import Recipe
from flows.recipe.sections import Dataset, Elsewhere
from flows.terminal import Terminal, say
from storage import datasets
from storage.artifact import Manifest
from storage.store import sources
from storage.store.store import Store, bytes_below
from tasks.finetuning.train import PLAIN, Training
from tasks.flops import Cost, Costs
from tasks.retrieval.encode import Encoding
from tasks.runtime.formatting import in_units
from tasks.session import Done, Session, session

WIDTH = 150  # columns that keys and the names of rounds need whole
START = {"pretrain": 2, "train": 0, "encode": 1, "train_teacher": 0, "score": 0, "rerank": 0}
"""Which input of a stage is the checkpoint that it passes texts through."""
EXAMPLES = {
    "pretrain": "texts", "train": "queries", "encode": "passages", "train_teacher": "queries", "score": "pairs",
    "rerank": "pairs",
}  # fmt: skip


def planned(recipe: Recipe[Any], name: str, store: Store) -> Session:
    """Every stage of the recipe, in order: how it would be called, its key, and whether the store has it.

    Raises UserError for settings that a stage which is still to be built would refuse.
    """
    with session(Session(store, recipe.execution, planning=True)) as plan:
        chain(recipe, name, store)
    if not all(step.cached for step in plan.done.values()):
        check(recipe)
    return plan


def show_plan(name: str, folder: Path, changes: Sequence[str]) -> None:
    """Print the plan as a table, and below it what is not here and what the numbers rest on."""
    recipe, path = load_recipe(name, changes)
    store = Store.open_or_new(folder)
    with sources.assuming_present() as absent:
        steps = list(planned(recipe, path.stem, store).done.values())
        bill, likes = Bill(recipe, steps), Likes(store)
    table = Table(title=f"{recipe.title} ({path.stem})", title_justify="left")
    for heading in ("stage", "round", "key", "state"):
        table.add_column(heading, no_wrap=heading != "round", overflow="fold")
    for heading in ("tokens ≤", "FLOPs ≤", "disk", "hours"):
        table.add_column(heading, justify="right", no_wrap=True)
    open_keys = without_key(steps)
    for step in steps:
        key = "–" if _reference(step) in open_keys else step.key
        table.add_row(step.stage, step.round, key, *_numbers(step, store, bill, likes))
    console = Terminal()
    console.width = max(console.width, WIDTH)
    console.print(table)
    missing = sum(not step.cached for step in steps)
    print(f"{len(steps)} stages: {len(steps) - missing} cached, {missing} to build; nothing was built")
    for note in (*(f"not here: {each}" for each in absent), *bill.notes, *likes.notes):
        say(note)


def without_key(steps: Sequence[Done]) -> set[str]:
    """The stages that depend on something that is not here, so that their keys are not known yet."""
    found: set[str] = set()
    for step in steps:
        if any(each.startswith("absent:") or each in found for each in _flat(step.inputs)):
            found.add(_reference(step))
    return found


class Bill:
    """Tokens and FLOPs of the stages that pass texts through an encoder."""

    def __init__(self, recipe: Recipe[Any], steps: Sequence[Done]) -> None:
        self.recipe, self.steps = recipe, {_reference(step): step for step in steps}
        self.costs = Costs(sources.weights(recipe.backbone.weights).path, recipe.backbone)
        self.suite = suite_of(recipe)
        self.elsewhere = {each.name: each for each in self.suite.collections} if self.suite else {}
        self.notes: dict[str, None] = {}
        self._known: dict[str, Cost] = {}
        if self.costs.assumed:
            self._note(f"FLOPs: {recipe.backbone.weights} is not here; it is taken to have the shape of BERT-base")

    def of(self, step: Done) -> Cost | None:
        """What a stage costs at most; None where nobody knows how many texts there are."""
        number, each = self._examples(step), self._each(step)
        if number is not None:
            return each.times(number)
        cost = f"{each.tokens:,.0f} tokens and {_in_powers(each.flops)} FLOPs at most"
        self._note(f"{step.stage}: how many {EXAMPLES[step.stage]} there will be is not known yet; each has {cost}")
        return None

    def _each(self, step: Done) -> Cost:
        """Of one text, pair or query."""
        if step.stage == "pretrain" and self.recipe.pretrain:
            return self.costs.pretraining(self.recipe.pretrain)
        teaching = self.recipe.teacher
        if teaching and step.stage in ("score", "rerank"):
            reading = teaching.score if step.stage == "score" else teaching.rerank
            return self._once(f"{reading}", lambda: self.costs.scoring(reading))
        if teaching and teaching.train and step.stage == "train_teacher":
            training = teaching.train
            return self._once(f"{training}", lambda: self.costs.teaching(training))
        if step.stage == "encode":
            trained, length = self._trained(step), self._limits(step).passage_max_tokens
            views = trained.retriever if trained else PLAIN
            return self._once(f"{views} {length}", lambda: self.costs.encoding(views, length))
        settings = self._training(step)
        like = settings.model_copy(update={"epochs": 1, "steps": None, "seed": 0}).model_dump_json()
        return self._once(like, lambda: self.costs.training(settings))

    def _trained(self, step: Done) -> Training | None:
        """How the retriever that encodes was trained; None for one that is taken as it is."""
        made = self.steps.get(step.inputs[1])
        return self._training(made) if made is not None and made.stage == "train" else None

    def _limits(self, step: Done) -> Encoding:
        """How much of a text is read."""
        if self.suite and step.round in self.elsewhere:
            return self.elsewhere[step.round].encode or self.suite.encode
        return self.recipe.encode

    def _once(self, like: str, cost: Callable[[], Cost]) -> Cost:
        """Counted the first time it is asked for."""
        if like not in self._known:
            self._known[like] = cost()
        return self._known[like]

    def _examples(self, step: Done) -> int | None:
        """How many texts, pairs or queries pass in all."""
        recipe, data, corpora = self.recipe, self.recipe.dataset, self.recipe.corpora
        if step.stage == "encode" and step.round in self.elsewhere:
            return self.steps[step.inputs[0]].rows or self.elsewhere[step.round].documents
        if step.stage == "encode":
            return self._passages(step.inputs[0], data, corpora.retrieve)
        if step.stage == "pretrain" and recipe.pretrain:
            if recipe.pretrain.steps:
                return recipe.pretrain.steps * recipe.pretrain.batch
            pairs = self.steps[step.inputs[0]]
            texts = pairs.rows or self._passages(pairs.inputs[0], corpora.pretrain_from or data, corpora.pretrain)
            return None if texts is None else recipe.pretrain.num_steps(texts) * recipe.pretrain.batch
        if step.stage in ("score", "rerank"):
            return None if None in (rows := self._pairs(step)) else sum(row or 0 for row in rows)
        queries = self.steps[step.inputs[1]].rows
        if queries is None and data.train_split:
            queries = self._published(data, "queries", data.train_split)
        if recipe.teacher and recipe.teacher.train and step.stage == "train_teacher":
            size = recipe.teacher.train.batch_queries
            return queries and -(-queries * recipe.teacher.train.epochs // size) * size
        settings = self._training(step)
        if settings.steps:
            return settings.steps * settings.batch_queries
        return queries and settings.num_steps(queries) * settings.batch_queries

    def _pairs(self, step: Done) -> list[int | None]:
        """The rows whose pairs are scored: positives and negatives, or the lists that are re-ranked."""
        return [self.steps[each].rows for each in (step.inputs[4:6] if step.stage == "score" else step.inputs[1:2])]

    def _passages(self, reference: str, data: Dataset | Elsewhere, part: str) -> int | None:
        passages = self.steps[reference]
        if passages.rows is not None:
            return passages.rows
        published = self._published(data, part)
        if self.recipe.split.max_tokens is None:
            return self.steps[passages.inputs[0]].rows or published
        if part != "corpus" or published is None:
            return None
        self._note(f"passages are counted as {data.reader} has them: {published:,}, before long ones are split")
        return published

    def _published(self, data: Dataset | Elsewhere, part: str, split: str | None = None) -> int | None:
        """How many rows a reader knows the whole collection to have."""
        return None if data.fraction is not None else datasets.num_rows(data.reader, part, split)

    def _training(self, step: Done) -> Training:
        trained = (each.train for each in expanded(self.recipe.rounds) if each.name == step.round)
        return next(training for training in trained if training is not None)

    def _note(self, words: str) -> None:
        self.notes.setdefault(words)


class Likes:
    """What this store holds that is like a stage to build: of the same inputs, or from the same checkpoint."""

    def __init__(self, store: Store) -> None:
        found = [(folder, manifest) for folder, manifest in store.manifests() if manifest]
        self.newest_first = sorted(found, key=lambda each: str(each[1].built["at"]), reverse=True)
        self.notes: dict[str, None] = {}

    def disk_and_hours(self, step: Done, cost: Cost | None) -> tuple[str, str]:
        """As the newest such artifact tells; blank where there is none."""
        found = next(self._like(step), None)
        if found is None:
            return "", ""
        folder, manifest = found
        seconds, basis = float(manifest.built["seconds"]), "made of the same inputs"
        if passes_texts(step):
            rate = tokens_a_second(folder, manifest)
            if cost is None or not rate:
                return f"~{in_units(bytes_below(folder))}", ""
            seconds, basis = cost.tokens / rate, f"at {rate:,.0f} tokens a second, from the same checkpoint"
        name = f"{manifest.stage}/{manifest.key}"
        self.notes.setdefault(f"hours of {step.stage}: as {name} took, {basis}, on {manifest.built['device']}")
        return f"~{in_units(bytes_below(folder))}", _in_hours(seconds)

    def _like(self, step: Done) -> Iterator[tuple[Path, Manifest]]:
        for folder, manifest in self.newest_first:
            if manifest.stage == step.stage:
                inputs, place = list(manifest.inputs.values()), START.get(step.stage, 0)
                if inputs == step.inputs or (passes_texts(step) and inputs[place] == step.inputs[place]):
                    yield folder, manifest


def passes_texts(step: Done) -> bool:
    """Whether a stage's work is to pass texts through an encoder."""
    return step.stage in START


def tokens_a_second(folder: Path, manifest: Manifest) -> float:
    """What an artifact's log says, in the median; of vectors, their passages' tokens at most by the seconds."""
    if manifest.stage == "encode":
        passages = json.loads((folder / "vectors.json").read_text())["passages"]
        return float(passages * manifest.settings["passage_max_tokens"] / manifest.built["seconds"])
    rows = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    return float(median([row["tokens_per_second"] for row in rows if "tokens_per_second" in row] or [0.0]))


def _numbers(step: Done, store: Store, bill: Bill, likes: Likes) -> tuple[str, str, str, str, str]:
    cost = bill.of(step) if passes_texts(step) else None
    tokens, flops = (_in_powers(cost.tokens), _in_powers(cost.flops)) if cost else ("", "")
    if passes_texts(step) and cost is None:
        tokens = flops = "?"
    if step.cached:
        return "cached", tokens, flops, in_units(bytes_below(store.folder(step.stage, step.key))), ""
    return "to build", tokens, flops, *likes.disk_and_hours(step, cost)


def _reference(step: Done) -> str:
    return f"{step.stage}/{step.key}"


def _flat(inputs: Sequence[Any]) -> Iterator[str]:
    """The references among a stage's inputs, some of which are lists and some absent."""
    for each in inputs:
        yield from each if isinstance(each, list) else [] if each is None else [each]


def _in_powers(number: float) -> str:
    return f"{number:.2e}".replace("e+", "e")


def _in_hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"~{hours:,.1f}" if hours >= 1 else f"~{hours:.3f}"
