"""Adaptation: notice a regression, plan again, restart on the new plan."""
