"""Who may touch which row: roles, row-level security, grants, and the guards of the books.

Revision: 0003, after 0002. Needs PostgreSQL 16 or later and a login that may create roles, or
the two roles made and granted beforehand.

`tenora_tenant` sees the rows of `current_setting('tenora.tenant_id')` and nothing else;
`tenora_system` sees all. The login role only switches to them: it inherits neither.
"""

from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None

ROLES = ("tenora_tenant", "tenora_system")

# What a tenant's own session may do, by table; row-level security then picks the rows.
TENANT_GRANTS = {
    "tenants": "select",
    "projects": "select, insert, update, delete",
    "api_keys": "select, insert, update, delete",
    "api_key_secrets": "select, insert, update, delete",
    "quota_limits": "select",
    "adapters": "select, insert, update, delete",
    "adapter_revisions": "select, insert, update, delete",
    "ledger_heads": "select",
    "ledger_entries": "select",
    "budget_spends": "select",
    "usage_records": "select",
}
# Tables without a tenant: prices are public inside the installation, the rest is not.
SHARED_TABLES = ("operators", "price_versions", "usage_rejections")
APPEND_ONLY = ("ledger_entries", "price_versions")

CURRENT_TENANT = "nullif(current_setting('tenora.tenant_id', true), '')::uuid"


def upgrade() -> None:
    """Create what is missing of the roles, then protect every table."""
    for role in ROLES:
        _ensure_role(role)
    for table, privileges in TENANT_GRANTS.items():
        _protect(table)
        op.execute(f"grant {privileges} on {table} to tenora_tenant")
    op.execute("grant select on price_versions to tenora_tenant")
    for table in (*TENANT_GRANTS, *SHARED_TABLES):
        privileges = "select, insert" if table in APPEND_ONLY else "select, insert, update, delete"
        op.execute(f"grant {privileges} on {table} to tenora_system")
    _create_append_only_guard()


def downgrade() -> None:
    """Remove policies, grants and guards. The roles stay: other databases may use them."""
    for table in APPEND_ONLY:
        op.execute(f"drop trigger {table}_append_only_rows on {table}")
        op.execute(f"drop trigger {table}_append_only_truncate on {table}")
    op.execute("drop function tenora_refuse_change()")
    for table in (*TENANT_GRANTS, *SHARED_TABLES):
        op.execute(f"revoke all on {table} from {', '.join(ROLES)}")
    for table in TENANT_GRANTS:
        op.execute(f"drop policy tenant_rows on {table}")
        op.execute(f"drop policy system_rows on {table}")
        op.execute(f"alter table {table} no force row level security")
        op.execute(f"alter table {table} disable row level security")
    op.execute(f"revoke usage on schema public from {', '.join(ROLES)}")


def _ensure_role(role: str) -> None:
    """Create `role` if the cluster lacks it and let the login switch to it.

    Roles are shared by a cluster's databases, so another database's migration may be doing the
    same: both outcomes of that race are caught.
    """
    op.execute(
        f"""
        do $$ begin
            if not exists (select from pg_roles where rolname = '{role}') then
                create role {role} nologin;
            end if;
        exception when duplicate_object or unique_violation then null;
        end $$
        """
    )
    op.execute(
        f"""
        do $$ begin
            if not pg_has_role(session_user, '{role}', 'set') then
                execute format('grant {role} to %I with inherit false, set true', session_user);
            end if;
        exception when unique_violation then null;
        end $$
        """
    )
    op.execute(f"grant usage on schema public to {role}")


def _protect(table: str) -> None:
    key = "id" if table == "tenants" else "tenant_id"
    op.execute(f"alter table {table} enable row level security")
    op.execute(f"alter table {table} force row level security")
    op.execute(
        f"create policy tenant_rows on {table} to tenora_tenant "
        f"using ({key} = {CURRENT_TENANT}) with check ({key} = {CURRENT_TENANT})"
    )
    op.execute(
        f"create policy system_rows on {table} to tenora_system using (true) with check (true)"
    )


def _create_append_only_guard() -> None:
    op.execute(
        """
        create function tenora_refuse_change() returns trigger language plpgsql as $$ begin
            raise exception '% is append-only: enter a correcting row instead', tg_table_name
                using errcode = 'restrict_violation';
        end $$
        """
    )
    for table in APPEND_ONLY:
        op.execute(
            f"create trigger {table}_append_only_rows before update or delete on {table} "
            "for each row execute function tenora_refuse_change()"
        )
        op.execute(
            f"create trigger {table}_append_only_truncate before truncate on {table} "
            "for each statement execute function tenora_refuse_change()"
        )
