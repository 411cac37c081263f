"""Watches runs: reads what workers wrote about their steps and makes it readable for people."""
