"""What is interrupted, when and how: drawn from a seed, spread evenly over the kinds of stages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

PAIRS, TEXTS = RECIPES = ("pairs.yaml", "texts.yaml")

KINDS = ("KILL", "TERM", "INT", "STOP+CONT", "STOP+KILL", "takeover")
"""`takeover` stops a builder and starts a second run, which waits for it or, with leases, builds in its place."""
MOMENTS = ("start", "during", "write", "publish")
"""At the stage's first line, after a part of its time, at a temporary file, or between manifest and rename."""
WEIGHTS = {"KILL": 6, "TERM": 5, "INT": 3, "STOP+CONT": 2, "STOP+KILL": 2, "takeover": 1}


@dataclass(frozen=True)
class Mode:
    """How the runs of a chain are started."""

    name: str
    share: float
    """Of all interruptions."""
    most: int
    """Interruptions of one chain."""
    recipes: tuple[str, ...] = RECIPES
    arguments: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    """Only these are interrupted; all, where none is named."""
    kinds: tuple[str, ...] = KINDS

    def of(self, recipes: Sequence[str]) -> Mode:
        """The same with no other recipes than these."""
        return replace(self, recipes=tuple(name for name in self.recipes if name in recipes))


RANKS = ("--set", "execution.processes=2")
MODES = (
    Mode("no server", 0.68, 70),
    Mode("external server", 0.12, 40),
    Mode("embedded server", 0.06, 20, (TEXTS,)),
    Mode("leases", 0.08, 15, (TEXTS,), kinds=("KILL", "TERM", "takeover", "takeover")),
    Mode("two processes", 0.06, 12, (TEXTS,), (*RANKS, "--until", "pretrain"), ("pretrain",),
         ("KILL", "TERM", "INT", "STOP+KILL")),
)  # fmt: skip


@dataclass(frozen=True)
class Interruption:
    """One signal, aimed at an artifact while a run of a recipe builds it."""

    number: int
    recipe: str
    reference: str
    moment: str
    fraction: float
    """Of the time that the stage took in the unbroken run; for `during`."""
    kind: str
    group: bool
    """To the process group, not to the process."""
    pause: float
    """Seconds from STOP to what follows."""
    inherits: bool
    """After a takeover: whether the stopped builder is killed; else it continues."""

    @property
    def stage(self) -> str:
        """The stage that it is aimed at."""
        return self.reference.partition("/")[0]


@dataclass(frozen=True)
class Chain:
    """Runs of one or two recipes on a store of their own, and what interrupts them."""

    number: int
    mode: Mode
    interruptions: tuple[Interruption, ...]

    def of(self, recipe: str) -> list[Interruption]:
        """Those of one recipe's runs, in the order of the stages."""
        return [interruption for interruption in self.interruptions if interruption.recipe == recipe]


def draw(
    kills: int, seed: int, built: Mapping[str, Sequence[str]], modes: Sequence[Mode] = MODES, first: int = 0
) -> list[Chain]:
    """Chains with `kills` interruptions in all; `built` has the references that each recipe builds, in order.

    The first chain has the number `first`.
    """
    chains: list[Chain] = []
    rest, shares = kills, sum(mode.share for mode in modes)
    for mode in modes:
        number = min(rest, max(1, round(kills * mode.share / shares)))
        number = rest if mode is modes[-1] else number
        rest -= number
        while number > 0:
            taken = min(number, mode.most)
            chains.append(_chain(first + len(chains), mode, taken, seed, built))
            number -= taken
    return chains


def _chain(number: int, mode: Mode, kills: int, seed: int, built: Mapping[str, Sequence[str]]) -> Chain:
    """The interruptions of one chain: as many of each kind of stage, but for one."""
    drawn = random.Random(f"{seed}/{number}/{mode.name}")
    candidates: dict[str, list[tuple[str, int]]] = {}
    for recipe in mode.recipes:
        for position, reference in enumerate(built[recipe]):
            stage = reference.partition("/")[0]
            if not mode.stages or stage in mode.stages:
                candidates.setdefault(stage, []).append((recipe, position))
    stages: list[str] = []
    while len(stages) < kills:
        stages += drawn.sample(sorted(candidates), len(candidates))
    aims = sorted(drawn.choice(candidates[stage]) for stage in stages[:kills])
    weights = [WEIGHTS[kind] for kind in mode.kinds]
    interruptions = tuple(
        Interruption(
            number=number, recipe=recipe, reference=built[recipe][at], moment=drawn.choice(MOMENTS),
            fraction=drawn.random(), kind=drawn.choices(mode.kinds, weights)[0], group=drawn.random() < 0.5,
            pause=drawn.uniform(0.05, 0.6), inherits=drawn.random() < 0.5,
        )
        for number, (recipe, at) in enumerate(aims)
    )  # fmt: skip
    return Chain(number, mode, interruptions)
