"""Answers to readers: why a request waits, lists, views. Changes nothing."""
