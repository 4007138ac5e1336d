"""Every case of python -m bench.report can be measured."""

import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.docs


def test_every_contender_of_the_report_computes_what_dpkern_does(request, source_tree, monkeypatch):
    monkeypatch.syspath_prepend(source_tree)
    request.config.addinivalue_line("markers", "full: of bench/pytest.ini")
    report, module = (importlib.import_module(f"bench.{name}") for name in ("report", "cases"))
    for suite in report.SUITES:
        for case in suite(True):
            contenders, _ = case.setup()
            results = {name: np.array(call()) for name, call in contenders.items()}
            for name, result in results.items():
                module.refuse_other_work(case, results["dpkern"], name, result)
