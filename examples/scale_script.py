"""Bring a published placed frame to the workers that a cluster has now: plan, ask, move.

For an operator, a cron entry or a Kubernetes job:

    python scale_script.py tcp://scheduler:8786 flights
    python scale_script.py tcp://scheduler:8786 flights --retire 3 4 --yes

The frame was published by whoever made it: `client.publish_dataset(flights=df)`. The script
ends with 0 when all partitions are where they should be, with 1 when the answer was no, and
with 2 when some could not be moved; it can be run again at any time.
"""

import argparse
import sys
import warnings

from distributed import Client


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scheduler", help="address of the scheduler")
    parser.add_argument("dataset", help="name of the published frame")
    parser.add_argument("--retire", nargs="+", default=[], metavar="NAME", help="workers that shall leave")
    parser.add_argument("--yes", action="store_true", help="move without asking")
    arguments = parser.parse_args()

    with Client(arguments.scheduler) as client:
        published = client.list_datasets()
        if arguments.dataset not in published:
            parser.error(f"no frame is published as {arguments.dataset!r}; there are: {', '.join(published)}")
        df = client.get_dataset(arguments.dataset)
        workers = {str(worker["name"]) for worker in client.scheduler_info(n_workers=-1)["workers"].values()}
        plan = df.chash.plan(sorted(workers - set(arguments.retire)))
        print(plan)
        if not plan.moves and not arguments.retire:
            return 0
        if not arguments.yes:
            print("Move these partitions? [y/N] ", end="", flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print("Nothing was moved.")
                return 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            done = df.chash.retire(arguments.retire) if arguments.retire else df.chash.rebalance(plan)
        print(f"Moved {len(done.moves)} of {len(plan.moves)} partitions.")
        for warning in caught:
            print(warning.message, file=sys.stderr)
        return 0 if len(done.moves) == len(plan.moves) else 2


if __name__ == "__main__":
    sys.exit(main())
