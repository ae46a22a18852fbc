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
HARMLESS_ELSEWHERE = [
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET n = CASE WHEN n THEN 1 END; DELETE FROM c; END",
    "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM c; END;",
    "DO $$ BEGIN PERFORM 1; END $$",
    "DO $body$ BEGIN PERFORM '$$'; COMMIT; END $body$",
    "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$",
    "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "SELECT E'it\\'s; commit'; SELECT 1",
    "SELECT a$b; SELECT c$b",
    "SELECT 1 /* a /* b */ ; commit; */; SELECT 2",
    "CALL settle()",
    "CREATE TABLE more (n INT)",
]
CONTROLS = [
    *("COMMIT", "commit work", " BEGIN", "END", "Abort", "Start  Transaction", "ROLLBACK", "XA START 'a'"),
    *("PREPARE TRANSACTION 'a'", "/* service */ COMMIT", "-- why\nCOMMIT", "; commit", "(COMMIT)"),
    "INSERT INTO a VALUES (1); COMMIT",
    "SELECT 'a'';'; /* ; */ commit",
    "SELECT 1;\n-- now\nROLLBACK;",
    "ROLLBACK AND CHAIN",
]


@pytest.mark.parametrize("is_mysql", [False, True])
@pytest.mark.parametrize("statement", HARMLESS)
def test_words_in_quotes_comments_and_expressions_end_nothing(statement: str, is_mysql: bool):
    assert effect_on_transaction(statement, is_mysql) in (None, "savepoint")


@pytest.mark.parametrize("statement", HARMLESS_ELSEWHERE)
def test_bodies_of_triggers_functions_and_blocks_end_nothing(statement: str):
    assert effect_on_transaction(statement, False) is None


@pytest.mark.parametrize("is_mysql", [False, True])
@pytest.mark.parametrize("statement", CONTROLS)
def test_transaction_control_is_found_wherever_a_statement_begins(statement: str, is_mysql: bool):
    assert effect_on_transaction(statement, is_mysql) == "controls"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM c; END; COMMIT",
        "SELECT 1 /* a /* b */ c */; COMMIT",
        "/* a /* b */ c */ COMMIT",
        "DO $$ BEGIN END $$; COMMIT",
        "SELECT '\\'; COMMIT",
    ],
)
def test_transaction_control_behind_a_body_a_comment_or_a_string_is_found(statement: str):
    assert effect_on_transaction(statement, False) == "controls"


@pytest.mark.parametrize(
    "statement",
    [
        *("CREATE TABLE more (n INT)", "TRUNCATE TABLE notes", "drop table notes", "LOCK TABLES a READ"),
        *("SET autocommit = 1", "SET @@session.autocommit=0", "SET PASSWORD = 'a'", "UNLOCK TABLES"),
        *("/*!40000 ALTER TABLE a ENABLE KEYS */", "SELECT 1; # why\nDROP TABLE a"),
        "CREATE TRIGGER t AFTER INSERT ON a FOR EACH ROW BEGIN DELETE FROM c; END",
    ],
)
def test_what_commits_implicitly_on_mysql_is_found(statement: str):
    assert effect_on_transaction(statement, True) == "commits"


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
        ("SELECT /* hint */ 1", None),
    ],
)
def test_of_mysql(statement: str, effect: str | None):
    assert effect_on_transaction(statement, True) == effect
