"""Audits of certificates by runs on neighbouring data, and bounds from the scores of attacks."""

from dpkern.auditing.audits import AuditResult, CertificateViolatedWarning, audit
from dpkern.auditing.bounds import ScoreAudit, audit_scores

__all__ = ["AuditResult", "CertificateViolatedWarning", "ScoreAudit", "audit", "audit_scores"]
