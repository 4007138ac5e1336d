"""Audits of certificates by runs on neighbouring data, and bounds from the scores of attacks."""

from dpkern.auditing.audits import AuditResult, CertificateViolatedWarning, audit
from dpkern.auditing.bounds import ScoreAudit, audit_scores
from dpkern.auditing.one_run import OneRunAudit, audit_one_run

__all__ = [
    "AuditResult",
    "CertificateViolatedWarning",
    "OneRunAudit",
    "ScoreAudit",
    "audit",
    "audit_one_run",
    "audit_scores",
]
