"""Pure rules over the models: (path, rule, remedy); used by admission, components and policies."""
