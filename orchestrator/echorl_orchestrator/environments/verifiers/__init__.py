"""Environments of the library verifiers, in workers that have it: ``verifiers:<id>``.

An environment of the library drives itself: it is given the gateway as its OpenAI API, and rewards its episodes by its
own rubric or task. Both of the library's generations are played: modules with ``load_environment`` (``classic``), and
task sets of ``verifiers.v1`` (``taskset``).
"""
