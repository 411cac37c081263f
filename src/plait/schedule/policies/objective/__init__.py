"""Parts of the multi-objective policy: goals, options, what tasks have had so far, what a configuration is worth."""
