"""Migrations from older formats, one package for each: plan, copy, bridge while both formats have
writers, verify, delete."""
