"""ServiceAccounts: one a role, without rights and without a mounted token."""

from echorl_operator import names
from echorl_operator.children.target import Object, Target
from echorl_operator.names import PodRole


def service_accounts(target: Target) -> list[Object]:
    """One for each role."""
    return [
        {
            **target.child("v1", "ServiceAccount", names.role_account(target.name, role), role),
            "automountServiceAccountToken": False,
        }
        for role in PodRole
    ]
