"""Snakemake as it is, except that it looks after its cluster's jobs twice a second: by itself it waits 10 s longer after every look in vain."""

import asyncio

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor


async def soon(_: Executor) -> None:
    await asyncio.sleep(0.5)


if __name__ == "__main__":
    Executor.sleep = soon
    main()
