"""Pictures and self-contained HTML pages of what a job did."""

from steelyard.reports.auditing import write_audit_report
from steelyard.reports.comparing import write_comparison_report
from steelyard.reports.selecting import write_selection_report
from steelyard.reports.training import write_training_report

__all__ = ["write_audit_report", "write_comparison_report", "write_selection_report", "write_training_report"]
