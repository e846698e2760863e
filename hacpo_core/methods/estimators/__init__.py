"""Estimators: advantage and weight of each row for each learner."""
