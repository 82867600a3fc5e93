"""Tests of exported policies."""
