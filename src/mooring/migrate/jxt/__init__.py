"""Migration of tenant configuration from the old keys to the new (contract T11).

formats     format (old keys) · translation (values, both ways)
state       state (of a unit, and of the migration in the store) · reader
decisions   merge_rule (old or new side) · name_conflicts · plan (parts) · indexes
execution   sync_unit · bridge · migration
"""
