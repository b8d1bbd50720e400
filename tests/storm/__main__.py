"""`make storm KILLS=200`: interrupt complete chains at random and compare what they build with an unbroken run.

python -m tests.storm [--kills 200] [--seed 1] [--minutes 60] [--out FILE] [--only MODE] [--recipe FILE]
                         [--keep]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.services.own_redis import Redis
from tests.services.servers import start_server, stopping
from tests.storm import recipes
from tests.storm.chains import ChainRuns, Weather
from tests.storm.reference import Reference, unbroken
from tests.storm.schedule import MODES, RANKS, RECIPES, TEXTS, Chain, Mode, draw


def main(arguments: list[str]) -> int:
    """Run a storm; the exit code is 1 where something differs or is left behind, 130 where it was interrupted."""
    parser = argparse.ArgumentParser(prog="storm")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=[mode.name for mode in MODES], action="append")
    parser.add_argument("--recipe", choices=RECIPES, action="append")
    parser.add_argument("--keep", action="store_true", help="keep the folders; they are kept where a problem is found")
    options = parser.parse_args(arguments)
    names = tuple(options.recipe or RECIPES)
    modes = [mode.of(names) for mode in MODES if not options.only or mode.name in options.only]
    folder, began = Path(tempfile.mkdtemp(prefix="storm-")), time.monotonic()
    weather = Weather(folder / "inputs", {}, {}, began + 60 * options.minutes)
    interrupted = False
    try:
        with ExitStack() as services:
            storm(weather, folder, options.kills, options.seed, [mode for mode in modes if mode.recipes], services)
    except KeyboardInterrupt:
        weather.stopped.set()
        interrupted = True
    minutes = round((time.monotonic() - began) / 60, 1)
    say(weather.outcome.as_text())
    say(f"seed {options.seed}, {minutes} minutes")
    if options.out:
        weather.outcome.write(options.out, seed=options.seed, requested=options.kills, minutes=minutes)
    if weather.outcome.problems or options.keep:
        say(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 130 if interrupted else int(bool(weather.outcome.problems))


def storm(
    weather: Weather, folder: Path, kills: int, seed: int, modes: list[Mode], services: ExitStack
) -> None:  # fmt: skip
    """Draw the chains and run one after the other until all is done or the time is over."""
    weather.inputs.mkdir()
    recipes.write(weather.inputs)
    names = [name for name in RECIPES if any(name in mode.recipes for mode in modes)]
    references = {"": unbroken(shutil.copytree(weather.inputs, folder / "unbroken"), names)}
    weather.reference = references
    say(f"unbroken: {len(references[''].artifacts)} artifacts")
    if not shutil.which("redis-server"):
        modes = [mode for mode in modes if mode.name != "leases"]
    chains = draw(kills, seed, references[""].built, modes)
    used = {chain.mode.name for chain in chains}
    if "two processes" in used:
        references["two processes"] = of_two_processes(folder, weather)
    weather.environment = start_services(folder, used, services)
    while chains:
        run_chain(chain := chains.pop(0), folder, weather)
        if time.monotonic() > weather.deadline:
            say("the time is over")
            return
        if not chains and (missing := kills - len(weather.outcome.hits)) > 0:  # some runs ended before their signal
            chains = draw(missing, seed, references[""].built, modes[:1], chain.number + 1)


def run_chain(chain: Chain, folder: Path, weather: Weather) -> None:
    """Run one chain and say what came of it."""
    began, before = time.monotonic(), len(weather.outcome.problems)
    runs = ChainRuns(chain, folder / f"chain-{chain.number}", weather)
    runs.run()
    problems = weather.outcome.problems[before:]
    say(
        f"chain {chain.number} ({chain.mode.name}): {len(runs.hits)} of {len(chain.interruptions)} interruptions, "
        f"{time.monotonic() - began:.0f} s, {len(problems)} problems"
    )
    for problem in problems:
        say(f"  {problem}")


def of_two_processes(folder: Path, weather: Weather) -> Reference:
    """The unbroken run of trainings in two processes, whose sums round otherwise."""
    return unbroken(shutil.copytree(weather.inputs, folder / "unbroken-2"), [TEXTS], *RANKS, "--until", "pretrain")


def start_services(folder: Path, used: set[str], services: ExitStack) -> dict[str, dict[str, str]]:
    """The environment of each mode whose services had to be started."""
    environment = {}
    if "external server" in used:
        server = start_server(folder / "server")
        services.enter_context(stopping(server))
        environment["external server"] = {"PREFECT_API_URL": server.url}
    if "leases" in used and shutil.which("redis-server"):
        (folder / "redis").mkdir()
        redis = Redis(folder / "redis")
        redis.start()
        services.callback(redis.stop)
        environment["leases"] = {"PRETRIEVE_LOCKS": redis.address}
    return environment


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
