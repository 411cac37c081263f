"""The live state machine on a virtual clock: traces, experiments, reports."""
