"""Batches: one command for each of many threads of work, however few slots there are for them.

    spec = fg.BatchSpec(500, ["./work.sh", "{index}"], slot=fg.SlotSpec(cpu_milli=250))
    async with fg.connect() as cluster:
        outcome = await fg.BatchJob(cluster, spec, results_dir="results").run()
        outcome.check()

What is promised: commands run *at least once*, and every thread of work has *exactly one* result,
whatever is killed and whatever runs twice. See docs/batch.md.
"""
