"""Attempts without the necessary right that are not in tables of tests: the group of each, its result, and the test
that makes it. `attempts_table` writes them into the table in docs/security.md.
"""

from typing import Final, NamedTuple

from headrace.base.errors import Code

BEFORE, PLAINLY, NAMES, IDS = "Before authentication", "By asking plainly", "By other names", "By id"
WAITING, GROUPS, TRANSACTIONS = "By a request that waits", "By a group", "By a transaction"
LINKS, ADMIN, HTTP, TOKENS = "By a link", "By the admin API", "By HTTP", "By a replayed or expired token"
DOWNGRADE, CERTIFICATE, REPLICA = "By downgrade", "By a certificate of another authority", "As a replica"
PEERS, METADATA, TIMING, BOMB = (
    "By the nodes' port",
    "By metadata",
    "By timing of unknown users",
    "By a compression bomb",
)
ORDER: Final = (
    *(BEFORE, PLAINLY, NAMES, IDS, WAITING, GROUPS, TRANSACTIONS, LINKS, ADMIN, HTTP),
    *(TOKENS, DOWNGRADE, CERTIFICATE, REPLICA, PEERS, METADATA, TIMING, BOMB),
)


class Row(NamedTuple):
    """One attempt. `test`: the function that makes it."""

    group: str
    attempt: str
    got: str
    test: str


FAILED = "SASL_AUTHENTICATION_FAILED (58), then the connection ended"
ENDED = "the connection ended, unread"
OTHERS: Final = (
    Row(
        BEFORE,
        "asks for anything but versions and a handshake",
        ENDED,
        "test_nothing_else_is_taken_and_its_body_is_not_read",
    ),
    Row(
        BEFORE,
        "asks for versions all the time",
        "four answers, then the connection ended",
        "test_versions_are_told_a_few_times",
    ),
    Row(
        BEFORE,
        "claims a giant frame, or a negative one",
        ENDED,
        "test_a_frame_beyond_the_limit_ends_the_connection_by_its_length",
    ),
    Row(BEFORE, "claims much, and sends little", "memory as bytes come", "test_memory_is_taken_as_bytes_come"),
    Row(
        BEFORE,
        "sends half a frame, and waits",
        "the connection ended after 10 s",
        "test_half_a_frame_waits_until_the_time_is_up",
    ),
    Row(BEFORE, "sends a frame too short for a key", ENDED, "test_a_frame_too_short_for_a_key_ends_the_connection"),
    Row(BEFORE, "makes short requests long", ENDED, "test_short_requests_are_short"),
    Row(BEFORE, "asks between the handshake and the token", ENDED, "test_between_handshake_and_token_comes_nothing"),
    Row(
        BEFORE,
        "sends a token without a handshake",
        "ILLEGAL_SASL_STATE (34)",
        "test_a_token_before_any_handshake_is_answered_as_out_of_place",
    ),
    Row(
        BEFORE,
        "sends requests right behind a login that fails",
        "the failure's answer alone",
        "test_a_failure_is_answered_first_and_nothing_behind_it_is_taken",
    ),
    Row(
        BEFORE,
        "sends on while its token is looked at",
        ENDED,
        "test_a_client_that_sends_on_while_its_token_is_seen_to_ends",
    ),
    Row(
        BEFORE,
        "sends two tokens at once, so that one may count for the other",
        FAILED,
        "test_steps_sent_at_once_prove_nobody",
    ),
    Row(
        BEFORE,
        "claims to be somebody else than it proves to be (authorization id)",
        FAILED,
        "test_an_authorization_id_that_is_not_the_principal_is_refused",
    ),
    Row(
        BEFORE,
        "logs in without a password, a name, or with superfluous NULs",
        FAILED,
        "test_a_message_that_breaks_a_rule_is_refused",
    ),
    Row(
        BEFORE,
        "proves by a token to be ANONYMOUS, or a name with a line's end",
        FAILED,
        "test_a_token_for_a_name_that_no_user_has_proves_nobody",
    ),
    Row(
        BEFORE,
        "takes all the places of those who have not logged in",
        "the one that waited longest made way",
        "test_at_the_limit_the_one_that_waited_longest_makes_way",
    ),
    Row(
        BEFORE,
        "fills the memory from many connections",
        "less than 64 MiB in all; others got in",
        "test_strangers_cost_little_and_others_get_in",
    ),
    Row(BEFORE, "breaks a login off halfway", "nobody was proven", "test_a_step_that_is_broken_off_proves_nobody"),
    Row(
        TOKENS,
        "comes with a token that has expired, or is not valid yet",
        FAILED,
        "test_a_token_counts_within_its_times_and_the_clocks_skew",
    ),
    Row(TOKENS, "continues when its session is over", ENDED, "test_a_session_that_is_over_ends_at_its_next_request"),
    Row(
        TOKENS, "renews its session as somebody else", FAILED, "test_another_principal_at_re_authentication_is_refused"
    ),
    Row(
        TOKENS,
        "renews its session by a password that was changed",
        FAILED,
        "test_a_password_that_was_changed_meanwhile_ends_the_session",
    ),
    Row(
        TOKENS,
        "asks between a renewal's handshake and its end",
        ENDED,
        "test_nothing_is_taken_between_a_renewals_handshake_and_its_end",
    ),
    Row(
        TOKENS,
        "sends the proof that another connection was made with",
        FAILED,
        "test_what_one_client_proved_is_worth_nothing_to_another_connection",
    ),
    Row(
        TOKENS,
        "signs a token with another issuer's key of the same id",
        FAILED,
        "test_a_token_of_another_issuers_key_with_the_same_id_is_refused",
    ),
    Row(TOKENS, "brings the key along in the token", FAILED, "test_keys_that_a_token_brings_along_are_not_looked_at"),
    Row(TOKENS, "changes what a token says", FAILED, "test_a_changed_payload_is_refused"),
    Row(
        TOKENS,
        "has a token of another issuer, or for another audience",
        FAILED,
        "test_a_claim_that_does_not_fit_is_refused",
    ),
    Row(DOWNGRADE, "comes with TLS 1.1", "no connection", "test_an_old_tls_is_refused"),
    Row(
        DOWNGRADE,
        "asks for a mechanism that is off",
        "UNSUPPORTED_SASL_MECHANISM (33)",
        "test_a_mechanism_that_is_off_is_refused_with_the_list_and_ends_it",
    ),
    Row(
        DOWNGRADE,
        "renews its session by a weaker mechanism",
        FAILED,
        "test_another_mechanism_at_re_authentication_is_refused_at_its_first_step",
    ),
    Row(DOWNGRADE, "sends a token without a signature", FAILED, "test_a_token_without_a_signature_is_refused"),
    Row(
        DOWNGRADE,
        "signs a token by the public key as a shared secret",
        FAILED,
        "test_a_token_with_a_public_key_as_its_secret_is_refused",
    ),
    Row(
        DOWNGRADE,
        "wants SCRAM without the rules that protect it (channel binding, delegation tokens, other nonces)",
        FAILED,
        "test_a_first_message_that_breaks_a_rule_is_refused",
    ),
    Row(
        DOWNGRADE,
        "talks the nodes' version down",
        "the session ended",
        "test_a_hello_that_was_changed_on_its_way_leads_nowhere",
    ),
    Row(
        DOWNGRADE,
        "speaks in clear where nodes speak TLS",
        "the session ended, without a word",
        "test_nothing_is_said_in_clear_where_tls_is_required",
    ),
    Row(
        CERTIFICATE,
        "shows a listener a certificate of another authority, or none",
        "no connection",
        "test_clients_with_a_certificate_of_the_authority_are_let_in_and_no_others",
    ),
    Row(
        CERTIFICATE,
        "shows one of an authority that is no longer trusted",
        "no connection",
        "test_trust_that_is_taken_back_is_gone",
    ),
    Row(
        CERTIFICATE,
        "shows one that no mapping rule makes a user of",
        ENDED,
        "test_a_certificate_that_makes_nobody_is_refused_before_any_request",
    ),
    Row(
        CERTIFICATE,
        "shows nodes one of another authority",
        "no connection",
        "test_a_certificate_of_another_authority_is_refused",
    ),
    Row(
        CERTIFICATE,
        "shows nodes one that has expired",
        "no connection",
        "test_a_certificate_that_expired_meanwhile_is_refused",
    ),
    Row(
        PEERS,
        "has a node's certificate, and not the secret",
        "the session ended",
        "test_a_certificate_alone_opens_nothing",
    ),
    Row(PEERS, "has another cluster's secret", "the session ended", "test_another_secret_is_refused_over_tls_too"),
    Row(PEERS, "stands between two nodes", "no session", "test_nobody_stands_between_two_nodes"),
    Row(
        PEERS,
        "sends a proof of another connection",
        "the session ended",
        "test_a_proof_for_another_connection_is_refused",
    ),
    Row(
        PEERS,
        "sends a proof of an earlier session",
        "the session ended",
        "test_a_proof_of_an_earlier_session_proves_nothing",
    ),
    Row(
        PEERS,
        "sends the server's own proof back",
        "the session ended",
        "test_the_servers_own_proof_sent_back_proves_nothing",
    ),
    Row(
        PEERS,
        "says Hello once more, as another node",
        "the session ended",
        "test_a_second_hello_does_not_change_who_is_there",
    ),
    Row(
        PEERS,
        "keeps the port busy with handshakes",
        "nodes got in",
        "test_strangers_keep_no_node_out_of_a_port_with_tls",
    ),
    Row(
        LINKS,
        "makes a link without `copy` at the source",
        "TOPIC_AUTHORIZATION_FAILED (29), and no link",
        "test_without_copy_no_link_is_made_and_the_reason_is_told",
    ),
    Row(
        LINKS,
        "copies a topic that is shut within a stream",
        "the topic stayed at home",
        "test_a_topic_that_is_shut_for_the_links_user_stays_at_home",
    ),
    Row(
        LINKS,
        "continues to copy when the right is taken away",
        "no further records",
        "test_a_right_that_is_taken_away_ends_the_copying_until_it_is_given_again",
    ),
    Row(
        LINKS,
        "moves a home without `admin` there",
        "TOPIC_AUTHORIZATION_FAILED (29)",
        "test_a_home_moves_only_by_a_user_who_has_admin_there",
    ),
    Row(
        LINKS,
        "has another cluster pull from here, by a link both ways, as nobody or as a user without `copy`",
        "an authorization error (29), and no link on either side",
        "test_a_user_who_may_not_copy_makes_no_link",
    ),
    Row(
        LINKS,
        "has the source's nodes read their files for the link that pulls from here",
        "CLUSTER_AUTHORIZATION_FAILED (31), and no link on either side",
        "test_files_of_the_sources_nodes_are_for_its_administrators",
    ),
    Row(
        HTTP,
        "hands over from elsewhere without the token",
        "401 or 403",
        "test_from_elsewhere_a_token_is_needed_for_what_changes_something",
    ),
    Row(HTTP, "shows another token, or one of another form", "401", "test_another_token_is_none"),
    Row(
        HTTP,
        "asks for paths other than the existing ones (segments, dots, encodings, letters)",
        "404 or 405",
        "test_no_path_leads_where_no_route_is",
    ),
    Row(HTTP, "has a page in a browser ask (CSRF)", "403", "test_a_page_in_a_browser_changes_nothing"),
    Row(
        HTTP,
        "comes by a name that leads here (DNS rebinding)",
        "403",
        "test_a_name_that_leads_here_is_not_this_machines",
    ),
    Row(HTTP, "sends a body", "413", "test_no_request_has_a_body"),
    Row(HTTP, "changes something by GET", "405", "test_only_a_post_hands_over"),
    Row(
        ADMIN,
        "sends parameters that take a thousand times as much memory",
        "INVALID_REQUEST (42), in 8 MiB",
        "test_parameters_become_no_objects_that_their_method_does_not_take",
    ),
    Row(
        ADMIN,
        "calls methods that do not exist, to learn which do",
        "CLUSTER_AUTHORIZATION_FAILED (31)",
        "test_unknown_methods_and_wrong_parameters_tell_nothing_to_who_has_no_right",
    ),
    Row(
        ADMIN,
        "calls every method without any right",
        "each one refused",
        "test_every_method_is_refused_without_its_right",
    ),
    Row(
        TIMING,
        "logs in as users that exist and users that do not, to compare the answers",
        "the same answer",
        "test_wrong_passwords_and_unknown_users_are_told_the_same",
    ),
    Row(
        TIMING,
        "asks for their salts by SCRAM",
        "a salt of everybody, the same each time",
        "test_the_record_of_an_unknown_user_looks_like_a_new_users_and_stays_the_same",
    ),
    Row(
        TIMING,
        "measures the work behind the answer",
        "the same operations",
        "test_known_and_unknown_users_cost_the_same_operations",
    ),
    Row(TIMING, "measures the look-up", "none sooner than its time", "test_no_look_up_is_answered_before_its_time"),
    Row(
        BOMB,
        "writes a batch that unpacks to more than the limit",
        "INVALID_RECORD (87), off the loop",
        "test_what_unpacks_to_more_than_the_limit_is_refused_and_never_on_the_loop",
    ),
    Row(BOMB, "does so in each codec", "refused at the limit", "test_a_bomb_is_refused_at_the_limit"),
    Row(
        BOMB,
        "sends compressed keys of an issuer",
        "not decompressed",
        "test_a_compressed_document_is_refused_and_not_decompressed",
    ),
)

WORDS: Final = {
    "writes with acks=0, so that nobody answers": "the connection ended, and nothing was written",
    "ends the fetch session of another user": "nothing: the session continued",
    "lists all topics": "only its own",
    "lists all topics without having proved anything": "an empty list",
    "lists all groups": "an empty list",
    "hides a topic of another tenant among its own": f"{Code.TOPIC_AUTHORIZATION_FAILED.name} (29) for that one",
}
"""Results of attempts that are not plain errors."""

ADMIN_GOT: Final = {
    "test_finds_out_the_groups_of_users_by_asking_what_they_may": "only those that the deciding expression names",
    "test_lists_and_sees_nothing_of_others": "only its own",
    "test_finds_out_into_which_stream_a_link_of_others_goes_by_its_name": "INVALID_REQUEST (42), without the stream",
    "test_learns_of_a_stream_of_others_by_making_it_if_it_does_not_exist": "TOPIC_ALREADY_EXISTS (36), at most",
    "test_makes_a_stream_among_those_of_the_cluster": "POLICY_VIOLATION (44), as administrator too",
    "test_announces_a_home_from_a_cluster_that_is_no_peer": "POLICY_VIOLATION (44), as administrator too",
    "test_announces_by_a_link_of_another_stream": "POLICY_VIOLATION (44)",
    "test_reads_a_topic_by_its_id_as_a_link_would": "UNKNOWN_TOPIC_ID (100), whether it is there or not",
    "test_copies_a_topic_that_is_shut_within_a_stream_that_he_may_copy": "UNKNOWN_TOPIC_ID (100)",
    "test_forges_a_line_of_the_log_by_a_name": "an authorization error, in one line",
    "test_sees_the_rest_of_a_stream_of_which_he_may_read_one_topic": "that topic alone",
    "test_hears_of_changes_of_a_topic_that_is_shut_within_a_stream_that_he_may_copy": "those of the others",
}
"""Results of attempts by the admin API that are not authorization errors."""
