rule derive:
    """A kernel file's definitions as text: derivation, costs, source, manifest. Any machine can run it for any other."""
    input:
        ancient("kernels/{kernel}.py"),
        ancient("kernels/{kernel}.yaml"),
    output:
        multiext(f"results/derive/{AXES}/", "manifest.json", "cost.json", "derivation.json", "derivation.md"),
    params:
        meaning=lambda w: experiment.derive_digest(EXPERIMENT, build_of(w)),
    log:
        f"results/logs/derive/{AXES}.log",
    resources:
        **SMALL,
    shell:
        f"moapipe derive {NAMES} 2>&1 | tee -i {{log}}"
