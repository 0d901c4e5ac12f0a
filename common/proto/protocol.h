/* SPDX-License-Identifier: MIT */
/* The wire between daemons, and from plstat to the hub (plume-protocol(7), part "hub").
 *
 * TCP, one JSON object a line. The hub speaks first, with a plain banner: a nonce, and a tag by
 * which those with the run's secret know the run. From then on every line is a frame: 64 hex
 * digits, a blank, the object. The digits are HMAC-SHA256 over direction, a counter and the
 * object's bytes, under a session key that both sides derive (keyed BLAKE2b) from the run's secret,
 * job, step, attempt and both nonces. A frame that is replayed, cut, extended, reflected or of
 * another job therefore fails. If both sides can (sealed.h), every line after the greeting is
 * encrypted. The offer and the answer are signed: nobody on the way can take them out.
 *
 *   server: BANNER_SENT --hello ok--> OPEN           client: WAIT_BANNER --> WAIT_WELCOME --> OPEN
 *   either: --anything wrong--> DEAD
 *
 * This file is the codec: bytes in, messages out, no descriptors. The owner moves bytes. */
#ifndef PL_COMMON_PROTO_PROTOCOL_H
#define PL_COMMON_PROTO_PROTOCOL_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/proto/key.h"
#include "common/proto/messages.h"
#include "common/proto/sealed.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define PL_NONCE_SIZE 16
#define PL_GREETING_MAX 4096               /* bytes of banner and hello: peer not yet known */
#define PL_FRAME_MAX ((size_t)1024 * 1024) /* bytes of a line once the session is open */

/* The run of a session. A requeued job has the same job and step, so the attempt is part of it. */
struct pl_session_id {
    char job[24]; /* Slurm's own number of the job, never the array form */
    char step[24];
    unsigned attempt; /* SLURM_RESTART_COUNT */
};

enum pl_session_state {
    PL_SESSION_BANNER_SENT,
    PL_SESSION_WAIT_BANNER,
    PL_SESSION_WAIT_WELCOME,
    PL_SESSION_OPEN,
    PL_SESSION_DEAD,
};

struct pl_session {
    enum pl_session_state state;
    bool server;
    struct pl_session_id id;
    unsigned char secret[PL_KEY_SIZE];
    unsigned char key[PL_KEY_SIZE];
    unsigned char nonce[PL_NONCE_SIZE]; /* ours */
    uint64_t sent, received;            /* counters of signed frames */
    enum pl_encrypt encrypt;            /* of this side */
    bool sealed;                        /* the lines are encrypted */
    struct pl_sealed stream;
    struct pl_buf in;
    struct pl_buf out; /* bytes for the owner to write, then pl_buf_consume() */
    json_t *hello;     /* client: to send (its role); server: as received */
};

/* Server: puts the banner into out. Both copy the secret. -ENOMEM; -EINVAL for a bad
 * $PLUME_ENCRYPT, see pl_encrypt_read(). */
int pl_session_serve(struct pl_session *s,
                     const struct pl_session_id *id,
                     const unsigned char secret[PL_KEY_SIZE]);

/* Client: waits for a banner; `hello` (borrowed, copied) holds the "role" of the first frame,
 * "daemon" or "client". */
int pl_session_connect(struct pl_session *s,
                       const struct pl_session_id *id,
                       const unsigned char secret[PL_KEY_SIZE],
                       json_t *hello);
void pl_session_finish(struct pl_session *s);

/* Adds received bytes. -ENOMEM. */
int pl_session_feed(struct pl_session *s, const void *data, size_t len);

/* Takes the next message out. Returns 1 with *ret (caller's reference); 0 when more bytes are
 * needed; or an error, after which the session is DEAD and the connection is to be closed:
 * -EPROTO (no Plume hub, or not of this major version), -ENOTSUP (one side must encrypt and the
 * other does not), -ESTALE (another job, step or attempt; or the secrets differ, which a client
 * cannot tell apart), -EACCES (the secrets differ, or a frame was changed), -EMSGSIZE, -EINVAL (bad
 * JSON). The server gets the client's hello as its first message. */
int pl_session_next(struct pl_session *s, json_t **ret, struct pl_error *err);

/* Puts a message into out. -ENOTCONN while not OPEN, -EMSGSIZE, -ENOMEM. */
int pl_session_send(struct pl_session *s, json_t *message);

/* As pl_session_send(), for a message that several sessions get: its line, by pl_json_dump_line(),
 * and its type. */
int pl_session_send_line(struct pl_session *s, const char *type, const struct pl_buf *line);

#endif
