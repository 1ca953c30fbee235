"""Everyday tables: `DSPPRegressor()` as a user would call it, compared with methods a user might choose instead.

    python -m benchmarks.tables --sets concrete,energy --methods dspp,lightgbm --folds 0,1,2
    python -m benchmarks.tables --setting members=4 --setting inducing=64 --results runs/study.jsonl
    python -m benchmarks.tables report

Fits that already have a line in the results file are skipped, so a run can be interrupted at any time. Scores are in
units standardised by the training rows, and every method has the same floor of the noise variance, 1e-4 in these
units. Methods other than ours use one thread; `threads` in each record says how many were allowed.

Treeffuser 0.2.0 and LightGBMLSS 0.6.1 are left out: neither can be installed beside the versions in constraints.txt.
"""
