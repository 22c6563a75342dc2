rule collect:
    """Predicted and measured side by side, in one dataset; the table that a run prints."""
    input:
        RECORDS,
        PREDICTIONS,
        TARGETS["validations"],
    output:
        f"{HERE}/dataset.nc",
        f"{HERE}/table.txt",
    params:
        code=kernel.code_digest("lab/record.py", "report/explain.py", "report/metrics.py", "report/table.py"),
    log:
        f"results/logs/{EXPERIMENT.name}/collect.log",
    resources:
        **SMALL,
    shell:
        f"moapipe collect {OF} 2>&1 | tee -i {{log}}"


rule chart:
    """Every chart as JSON and SVG."""
    input:
        f"{HERE}/dataset.nc",
    output:
        directory(f"{HERE}/charts"),
    params:
        code=kernel.code_digest("report/charts.py", "report/mark.py", "report/strain.py", "report/explain.py", "report/metrics.py"),
    log:
        f"results/logs/{EXPERIMENT.name}/chart.log",
    resources:
        **SMALL,
    shell:
        f"moapipe chart {OF} 2>&1 | tee -i {{log}}"


rule evidence:
    """What is known of each text for a GPU: emulated, compiled, run on one or not."""
    input:
        TARGETS["emulations"],
        TARGETS["builds"],
        TARGETS["validations"],
    output:
        f"{HERE}/evidence.json",
    params:
        code=kernel.code_digest("lab/evidence.py", "report/evidence.py"),
    log:
        f"results/logs/{EXPERIMENT.name}/evidence.log",
    resources:
        **SMALL,
    shell:
        f"moapipe evidence {EXPERIMENT.where} --machine {MACHINE} --keep-going 2>&1 | tee -i {{log}}"


rule archive:
    """A new folder below results/archives with everything in it and a page; archive.txt says where."""
    input:
        f"{HERE}/dataset.nc",
        f"{HERE}/charts",
        TARGETS["evidences"],
    output:
        f"{HERE}/archive.txt",
    params:
        code=kernel.code_digest("report"),
    log:
        f"results/logs/{EXPERIMENT.name}/archive.log",
    resources:
        **SMALL,
    shell:
        f"moapipe archive {OF} 2>&1 | tee -i {{log}}"
