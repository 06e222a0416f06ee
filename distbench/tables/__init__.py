"""Typed tables, and how they are shown: text, Markdown, CSV, JSON."""
