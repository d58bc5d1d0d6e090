"""Metrics of engines as one."""

import pytest

from echorl_orchestrator.engines.engine_metrics import EngineMetrics, parse

TEXT = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_running{engine="1",model_name="policy"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:generation_tokens_total{engine="0",model_name="a b"} 100.0
vllm:generation_tokens_created{engine="0"} 1.7e+09
vllm:request_success_total{finished_reason="stop"} 4.0
vllm:request_success_total{finished_reason="length"} 1.0
process_cpu_seconds_total 1.0
"""


def test_parse_sums_over_labels_and_keeps_only_known_families():
    assert parse(TEXT) == {"running": 4.0, "kv_usage": 0.25, "generation_tokens_total": 100.0, "requests_total": 5.0}


def test_counters_survive_resets_and_dead_engines_and_gauges_do_not():
    metrics = EngineMetrics()
    metrics.observe("a", "vllm:generation_tokens_total 100\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5")
    metrics.observe("b", "vllm:generation_tokens_total 10\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.1")
    metrics.observe("a", "vllm:generation_tokens_total 130\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5")
    snapshot = metrics.snapshot()
    assert (snapshot["generation_tokens_total"], snapshot["running"]) == (140, 5)
    assert (snapshot["kv_usage_mean"], snapshot["kv_usage_max"]) == (pytest.approx(0.3), 0.5)
    metrics.observe("a", "vllm:generation_tokens_total 7\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0")
    metrics.forget("b")
    metrics.forget("never seen")
    snapshot = metrics.snapshot()
    assert (snapshot["generation_tokens_total"], snapshot["running"], snapshot["kv_usage_max"]) == (147, 0, 0)


def test_empty_pool_has_zeros():
    assert set(EngineMetrics().snapshot().values()) == {0.0}
