"""Turns for the next process of the attempt: ``frames`` and ``parts`` are pure, ``segments`` are files."""
