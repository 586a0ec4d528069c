"""Moving what older programs keep into the formats of today: look first, copy, compare, keep both
while there are writers of both, delete. One package for each migration."""
