"""Measure, and tell: `python -m bench [--quick] [--only steps ...]`"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from bench import report
from bench.contenders import BY_KEY, OPENENV_PYTHON
from bench.measure import Effort, Measure
from bench.records import Record, Records, errors_of
from bench.registry import MEASURES
from bench.watch import Watch

FULL = Effort(rounds=3, seconds=2.0, sessions=(1, 16, 64, 256, 1024))
QUICK = Effort(rounds=2, seconds=1.0, sessions=(1, 64), is_quick=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, and no files written")
    parser.add_argument("--only", nargs="+", choices=[measure.key for measure in MEASURES])
    parser.add_argument("--contenders", nargs="+", choices=list(BY_KEY), help="only these servers")
    parser.add_argument("--sessions", nargs="+", type=int)
    parser.add_argument("--crowds", nargs="+", type=int, help="sessions at once, of the scaling experiment")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    return parser.parse_args()


def effort_of(args: argparse.Namespace) -> Effort:
    chosen = QUICK if args.quick else FULL
    return Effort(
        rounds=args.rounds or chosen.rounds,
        seconds=args.seconds or chosen.seconds,
        sessions=tuple(args.sessions or chosen.sessions),
        is_quick=chosen.is_quick,
        crowds=tuple(args.crowds or ()),
    )


def chosen_measures(args: argparse.Namespace) -> list[Measure]:
    if args.only:
        return [measure for measure in MEASURES if measure.key in args.only]
    return [measure for measure in MEASURES if (measure.in_quick if args.quick else measure.is_usual)]


def run(measure: Measure, effort: Effort, only: list[str] | None) -> Iterator[Record]:
    """One measurement, round by round, the contenders in turn."""
    everybody = measure.contenders(effort if only is None else replace(effort, is_quick=False))
    for round_number in range(effort.rounds):
        for contender in everybody:
            if only is None or contender.key in only:
                print(f"  {measure.key}, round {round_number + 1}: {contender.name}", file=sys.stderr)
                yield from measure.run(contender, effort, round_number)


def main() -> None:
    args = arguments()
    if not OPENENV_PYTHON.exists():
        sys.exit("OpenEnv is not there to compare with: run `make bench`, which installs it")
    effort, failed = effort_of(args), False
    for measure in chosen_measures(args):
        with Watch() as watch:
            records = Records(list(run(measure, effort, args.contenders)))
        print(f"{report.section(records, measure)}\n{watch.told}", flush=True)
        failed = failed or bool(errors_of(records.all))
        if not args.quick and args.contenders is None:
            report.save(records, effort, watch.told)
    sys.exit("some runs had errors, and are not compared" if failed else 0)


if __name__ == "__main__":
    main()
