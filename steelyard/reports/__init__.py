"""Pictures and self-contained HTML pages of what a job did."""

from steelyard.reports.training import write_training_report

__all__ = ["write_training_report"]
