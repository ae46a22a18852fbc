"""What the text of an SQL statement does to its transaction."""

from __future__ import annotations

import pytest

from conquiet.db.statements import effect_on_transaction

HARMLESS = [
    "INSERT INTO notes VALUES ('shipped; end of story')",
    "INSERT INTO notes VALUES ('it''s; commit')",
    'UPDATE "odd; commit" SET a = 1; UPDATE b SET c = 1',
    "SELECT 1; -- ; commit\nSELECT 2",
    "SELECT 1 /* ; commit; */; SELECT 2",
    "SELECT CASE WHEN a THEN 1 END; SELECT 2",
    "ROLLBACK TO SAVEPOINT a",
    "ROLLBACK WORK TO a",
    "RELEASE SAVEPOINT a",
    "SELECT 'a' AS begin",
    "",
    ";",
]
HARMLESS_ON_SQLITE = [
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET n = CASE WHEN n THEN 1 END; DELETE FROM c; END",
    "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM c; END;",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT NEW.[end], 1 AS end; SELECT 2; END",
    "INSERT INTO [odd; commit] VALUES (1)",
    "/* a /* b */ INSERT INTO a VALUES (1)",
]
HARMLESS_ON_POSTGRES = [
    "DO $$ BEGIN PERFORM 1; END $$",
    "DO $body$ BEGIN PERFORM '$$'; COMMIT; END $body$",
    "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$",
    "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "SELECT E'it\\'s; commit'; SELECT 1",
    "SELECT E'it''s \\'; commit'; SELECT 1",
    "SELECT E'a'\n'b\\'; commit'; SELECT 1",
    "SELECT a$b; SELECT c$b",
    "SELECT 1 /* a /* b */ ; commit; */; SELECT 2",
    "CALL settle()",
    "CREATE TABLE more (n INT)",
]
CONTROLS = [
    *("COMMIT", "commit work", " BEGIN", "END", "Abort", "Start  Transaction", "ROLLBACK", "XA START 'a'"),
    *("/* service */ COMMIT", "-- why\nCOMMIT", "; commit", "(COMMIT)"),
    "INSERT INTO a VALUES (1); COMMIT",
    "SELECT 'a'';'; /* ; */ commit",
    "SELECT 1;\n-- now\nROLLBACK;",
    "ROLLBACK AND CHAIN",
]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql", "mariadb"])
@pytest.mark.parametrize("statement", HARMLESS)
def test_words_in_quotes_comments_and_expressions_end_nothing(statement: str, dialect: str):
    assert effect_on_transaction(statement, dialect) in (None, "savepoint")


@pytest.mark.parametrize("statement", HARMLESS_ON_POSTGRES)
def test_bodies_of_functions_and_blocks_end_nothing(statement: str):
    assert effect_on_transaction(statement, "postgresql") is None


@pytest.mark.parametrize("statement", HARMLESS_ON_SQLITE)
def test_bodies_of_triggers_end_nothing(statement: str):
    assert effect_on_transaction(statement, "sqlite") is None


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb"])
@pytest.mark.parametrize("statement", CONTROLS)
def test_transaction_control_is_found_wherever_a_statement_begins(statement: str, dialect: str):
    assert effect_on_transaction(statement, dialect) == "controls"


@pytest.mark.parametrize(
    "statement",
    [
        "PREPARE TRANSACTION 'a'",
        "CREATE FUNCTION f(begin int) RETURNS int LANGUAGE sql AS 'SELECT 1'; COMMIT",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; END; COMMIT",
        "SELECT E'a'\n'b\\''; COMMIT; --'",
        "SELECT 1 /* a /* b */ c */; COMMIT",
        "/* a /* b */ c */ COMMIT",
        "DO $$ BEGIN END $$; COMMIT",
        "SELECT '\\'; COMMIT",
    ],
)
def test_transaction_control_behind_a_body_a_comment_or_a_string_is_found(statement: str):
    assert effect_on_transaction(statement, "postgresql") == "controls"


@pytest.mark.parametrize("statement", ["COMMIT", "/* a /* b */ COMMIT", "-- why\n; END", "ROLLBACK"])
def test_transaction_control_is_found_on_sqlite(statement: str):
    assert effect_on_transaction(statement, "sqlite") == "controls"


@pytest.mark.parametrize(
    "statement",
    [
        *("CREATE TABLE more (n INT)", "TRUNCATE TABLE notes", "drop table notes", "LOCK TABLES a READ"),
        *("SET autocommit = 1", "SET @@session.autocommit=0", "SET PASSWORD = 'a'"),
        *("SET `autocommit` = 1", "SET @a = 1, autocommit := 1", "SET DEFAULT ROLE NONE"),
        *("SET STATEMENT max_statement_time = 5 FOR DROP TABLE a", "ANALYZE LOCAL TABLE a"),
        *("/*!40000 ALTER TABLE a ENABLE KEYS */", "SELECT 1; # why\nDROP TABLE a"),
        "CREATE TRIGGER t AFTER INSERT ON a FOR EACH ROW BEGIN DELETE FROM c; END",
    ],
)
def test_what_commits_implicitly_on_mysql_is_found(statement: str):
    assert effect_on_transaction(statement, "mysql") == "commits"


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("CALL settle()", "may end"),
        ("EXECUTE prepared", "may end"),
        ("/*! COMMIT */", "controls"),
        ("SELECT 'it\\'s; COMMIT'", None),
        ("SET @note = 'autocommit'", None),
        ("CREATE TEMPORARY TABLE a (n INT)", None),
        ("DROP TEMPORARY TABLE a", None),
        ("CREATE OR REPLACE TEMPORARY TABLE a (n INT)", None),
        ("SELECT /* hint */ 1", None),
        ("SET @autocommit = 1", None),
        ("ANALYZE FORMAT=JSON SELECT 1", None),
        ("DROP PREPARE a", None),
        ("SET STATEMENT max_statement_time = 5 FOR INSERT INTO a VALUES (1)", None),
        ("SET STATEMENT max_statement_time = 5 FOR COMMIT", "controls"),
        ("BEGIN NOT ATOMIC INSERT INTO a VALUES (1); END", "may end"),
        ("IF 1 THEN INSERT INTO a VALUES (1); END IF", "may end"),
        ("again: LOOP LEAVE again; END LOOP", "may end"),
        ("SELECT 1; REPEAT COMMIT; UNTIL 1 END REPEAT", "may end"),
        ("CALL settle(); COMMIT", "controls"),
        ("UNLOCK TABLES", "may end"),
        ("BACKUP STAGE START", "may end"),
    ],
)
def test_of_mysql(statement: str, effect: str | None):
    assert effect_on_transaction(statement, "mariadb") == effect
