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
vllm:spec_decode_num_drafts_total{engine="0",model_name="policy"} 5.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="policy"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="policy"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="policy",position="0"} 4.0
process_cpu_seconds_total 1.0
"""


def test_parse_sums_over_labels_and_keeps_only_known_families():
    assert parse(TEXT) == {
        "running": 4.0,
        "kv_usage": 0.25,
        "generation_tokens_total": 100.0,
        "requests_total": 5.0,
        "draft_tokens_total": 20.0,
        "accepted_draft_tokens_total": 7.0,
    }


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


def test_what_an_engine_counted_before_it_was_found_is_not_growth():
    metrics = EngineMetrics()
    metrics.observe("used", "vllm:generation_tokens_total 100", fresh=False)
    assert metrics.snapshot()["generation_tokens_total"] == 0
    metrics.observe("used", "vllm:generation_tokens_total 130", fresh=False)
    assert metrics.snapshot()["generation_tokens_total"] == 30


def test_an_engine_that_is_found_again_is_not_counted_twice():
    metrics = EngineMetrics()
    metrics.observe("a", "vllm:generation_tokens_total 100\nvllm:num_requests_running 3")
    metrics.forget("a")
    assert metrics.snapshot()["running"] == 0
    metrics.observe("a", "vllm:generation_tokens_total 110\nvllm:num_requests_running 1")
    assert (metrics.snapshot()["generation_tokens_total"], metrics.snapshot()["running"]) == (110, 1)


def latencies(low: int, high: int, seconds: float) -> str:
    name = "vllm:time_to_first_token_seconds"
    return "\n".join([
        f'{name}_bucket{{engine="0",le="0.25",model_name="policy"}} {low}.0',
        f'{name}_bucket{{engine="0",le="+Inf",model_name="policy"}} {high}.0',
        f'{name}_count{{engine="0",model_name="policy"}} {high}.0',
        f'{name}_sum{{engine="0",model_name="policy"}} {seconds}',
        f'{name}_created{{engine="0",model_name="policy"}} 1.7e+09',
    ])  # fmt: skip


def test_latencies_are_one_histogram_over_the_pool_and_survive_resets():
    metrics = EngineMetrics()
    metrics.observe("a", latencies(3, 4, 1.5))
    metrics.observe("b", latencies(1, 2, 1.0))
    metrics.observe("a", latencies(1, 1, 0.25))
    found = metrics.distributions()
    assert set(found) == {"time_to_first_token_seconds"}
    assert found["time_to_first_token_seconds"].buckets == [("0.25", 5.0), ("+Inf", 7.0)]
    assert found["time_to_first_token_seconds"].total == 2.75


def test_kv_use_of_a_server_with_several_engines_is_the_fullest_one():
    metrics = EngineMetrics()
    metrics.observe("a", 'vllm:kv_cache_usage_perc{engine="0"} 0.75\nvllm:kv_cache_usage_perc{engine="1"} 0.5')
    assert metrics.snapshot()["kv_usage_max"] == 0.75


def test_empty_pool_has_zeros():
    assert set(EngineMetrics().snapshot().values()) == {0.0}
