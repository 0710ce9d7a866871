"""The list of all mutants."""

from __future__ import annotations

import attrs

from tests.mutants.blind.bugs_of_access_and_disks import BUGS_OF_ACCESS_AND_DISKS
from tests.mutants.blind.bugs_of_clients import BUGS_OF_CLIENTS
from tests.mutants.blind.bugs_of_coordinators import BUGS_OF_COORDINATORS
from tests.mutants.blind.bugs_of_logs import BUGS_OF_LOGS
from tests.mutants.blind.bugs_of_replicas import BUGS_OF_REPLICAS
from tests.mutants.blind.bugs_of_the_controller import BUGS_OF_THE_CONTROLLER
from tests.mutants.blind.bugs_of_the_quorum import BUGS_OF_THE_QUORUM
from tests.mutants.known.bugs_of_access import MUTANTS_OF_ACCESS
from tests.mutants.known.bugs_of_cleaning import MUTANTS_OF_CLEANING
from tests.mutants.known.bugs_of_consumer_groups import MUTANTS_OF_CONSUMER_GROUPS
from tests.mutants.known.bugs_of_disks import MUTANTS_OF_DISKS
from tests.mutants.known.bugs_of_history import MUTANTS_OF_HISTORY
from tests.mutants.known.bugs_of_moves import MUTANTS_OF_MOVES
from tests.mutants.known.bugs_of_parts import MUTANTS_OF_PARTS
from tests.mutants.known.bugs_of_quotas import MUTANTS_OF_QUOTAS
from tests.mutants.known.bugs_of_recoveries import MUTANTS_OF_RECOVERIES
from tests.mutants.known.bugs_of_rules import MUTANTS_OF_RULES
from tests.mutants.known.bugs_of_transactions import MUTANTS_OF_TRANSACTIONS
from tests.mutants.known.bugs_that_stall import MUTANTS_THAT_STALL
from tests.mutants.mutant import Mutant

BLIND: tuple[Mutant, ...] = (
    *BUGS_OF_THE_QUORUM,
    *BUGS_OF_THE_CONTROLLER,
    *BUGS_OF_REPLICAS,
    *BUGS_OF_LOGS,
    *BUGS_OF_COORDINATORS,
    *BUGS_OF_CLIENTS,
    *BUGS_OF_ACCESS_AND_DISKS,
)
MUTANTS: tuple[Mutant, ...] = (
    *MUTANTS_OF_HISTORY,
    *MUTANTS_OF_ACCESS,
    *MUTANTS_OF_CLEANING,
    *MUTANTS_OF_CONSUMER_GROUPS,
    *MUTANTS_OF_DISKS,
    *MUTANTS_OF_MOVES,
    *MUTANTS_OF_PARTS,
    *MUTANTS_OF_QUOTAS,
    *MUTANTS_OF_RECOVERIES,
    *MUTANTS_OF_RULES,
    *MUTANTS_OF_TRANSACTIONS,
    *MUTANTS_THAT_STALL,
    *(attrs.evolve(mutant, is_blind=True) for mutant in BLIND),
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
