# SPDX-License-Identifier: MIT
"""Places of the product that ./dev mutate breaks: the file, a text that stands in it once, what it
becomes, and the test that finds it. A place whose code changes gets its new text here; a place is
never removed because its test no longer finds it."""


def place(file, text, broken, test):
    return {"file": file, "text": text, "broken": broken, "test": test}


MUTATIONS = [
    # common
    place("common/base/parse.c", "if (r < 0 || value < min || value > max) {",
          "if (r < 0 || value < min) {", "parse"),
    place("common/base/utf8.c", "if (c < lowest[n] || ", "if (", "utf8"),
    place("common/base/utf8.c", "{0x200b, 0x200f},   {0x2028, 0x202e},", "{0x200b, 0x200f},   {0x2028, 0x202d},", "term"),
    place("common/base/fs.c", "O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK",
          "O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK", "fs"),
    place("common/proto/json.c", "if (text_depth(text, len) > PL_JSON_DEPTH_MAX)",
          "if (text_depth(text, len) > PL_JSON_DEPTH_MAX + 1)", "json"),
    place("common/proto/protocol.c", "if (sodium_memcmp(want, have, sizeof(want)) != 0)",
          "if (sodium_memcmp(want, have, sizeof(want) / 2) != 0)", "protocol"),
    place("common/proto/rank/minijson.c", "((c - 0xd800) << 10) + (low - 0xdc00);",
          "((c - 0xd800) << 10) + (low - 0xdc01);", "minijson"),
    place("common/run/cause.c", "ran_s >= limit_s;", "ran_s > limit_s + 60;", "cause"),
    # launcher
    place("launcher/plsubmit/script.c", "r = *s == '\\'' ? pl_buf_adds(out, \"'\\\\''\") : pl_buf_addc(out, *s);",
          "r = pl_buf_addc(out, *s);", "script"),
    place("launcher/plsubmit/grid.c", "if (*s == '\"' && *++s != '\"')", "if (*s == '\"' && *++s)", "grid"),
    place("launcher/plstat/fold.c", "a->exit == b->exit &&", "", "fold"),
    # runtime
    place("runtime/node/net.c", "while (i < size && j < i) {", "while (i < size && j + 1 < i) {", "net"),
    place("runtime/plrund/daemon/capture.c", "c->line.len >= LINE_MAX_BYTES)", "c->line.len >= 2 * LINE_MAX_BYTES)", "capture"),
    place("runtime/plrund/daemon/daemon_clean.c", "if (fstatat(proc, pid, &st, 0) < 0 || st.st_uid != geteuid())",
          "if (fstatat(proc, pid, &st, 0) < 0 || st.st_uid == geteuid())", "spank-run.bats"),
    place("runtime/plrund/hub/decide.c", "if (a->asked_late && a->inferred && !a->held)", "if (a->inferred && !a->held)", "decide"),
    place("runtime/plrund/daemon/uplink.c", "    u->n_ports += PL_SPARE_PORTS;\n", "", "daemon-strangers"),
    place("runtime/plrund/hub/peers.c", "        pl_net_is_loopback(launch))\n        return r;", "        pl_net_is_loopback(launch) || true)\n        return r;", "hosts.bats"),
    # plugin
    place("spank_plugin/daemon_env.c", "return strncmp(entry, \"PLUME_PARAM_\", 12) != 0 && ", "return ", "spank_env"),
    place("spank_plugin/node_daemon.c", "if (syscall(SYS_setgroups, user->n_groups, user->groups) < 0 ||", "if (", "spank_daemon"),
    place("spank_plugin/values.c", "if (strnlen(s, PL_VALUES_MAX + 1) <= PL_VALUES_MAX)", "if (strnlen(s, PL_VALUES_MAX + 2) <= PL_VALUES_MAX + 1)", "spank_values"),
    # kernels
    place("kernels/cpu/softmax.c", "y[i] = x[i] - max - log_sum;", "y[i] = x[i] - log_sum;", "softmax"),
    place("kernels/cpu/adam.c", "(sqrtf(v[k]) / correct2 + eps)", "(sqrtf(v[k] + eps) / correct2)", "adam"),
    place("kernels/cuda/layernorm.cu", "sum(square) / (R)f.n + f.eps);", "sum(square) / (R)(f.n - 1) + f.eps);", "layernorm"),
    # engine
    place("runtime/engine/tape/tape_memory.c", "order[k]->from <= order[i]->to && order", "order[k]->from < order[i]->to && order", "engine_plan"),
    place("runtime/engine/tape/tape_writes.c", "root->written = views_cover(tape, root) ? PARTS_COVER : PARTS;", "root->written = PARTS_COVER;", "engine_grads"),
    place("runtime/engine/data/sampler.c", "size_t at = (o->rank + i * o->world_size) % sampler->total;", "size_t at = (o->rank * sampler->count + i) % sampler->total;", "engine_sampler"),
    place("runtime/engine/data/data_csv.c", "s += *s == '\"'; /* two quotes", "/* two quotes", "engine_formats"),
    place("runtime/engine/config/early_stop.c", "return ++stop->waited >= rule->patience;", "return ++stop->waited > rule->patience;", "fit"),
    place("runtime/engine/optim/scaler.c", "} else if (++scaler->good_steps == scaler->interval) {", "} else if (++scaler->good_steps > scaler->interval) {", "engine_optim"),
    place("runtime/engine/optim/schedule.c", "passed += (double)o->milestone[i] <= t;", "passed += (double)o->milestone[i] < t;", "engine_optim"),
    place("runtime/engine/reduce/reducer.c", "b->count + (end - p->offset) > max)", "b->count > max)", "engine_params"),
    place("runtime/engine/checkpoint/ckpt_writer.c", "placed = link(job->path, temp) == 0 && pl_checkpoint_place(temp, job->also, NULL) == 0;", "placed = link(job->path, temp) == 0;", "engine_checkpoint"),
    place("runtime/engine/ops/op_shape.c", "if (x->shape[d] == 1)", "if (x->shape[d] == 0)", "engine_views"),
    place("runtime/pltrain/spawn_local.c", "128 + WTERMSIG(status);", "WTERMSIG(status);", "pltrain.bats"),
    # defences of SECURITY.md, by its numbers
    # S4
    place("common/proto/protocol.c", "head[0] = from_server ? 'S' : 'C';", "head[0] = 'C';", "protocol"),
    place("common/proto/protocol.c", "head[1 + i] = (unsigned char)(counter >> (56 - 8 * i));", "head[1 + i] = 0;", "protocol"),
    place("common/proto/protocol.c", "crypto_generichash_update(&h, client_nonce, PL_NONCE_SIZE);", "", "protocol"),
    place("common/proto/protocol.c", "crypto_generichash_update(&h, server_nonce, PL_NONCE_SIZE);\n    crypto_generichash_update(&h, client",
          "crypto_generichash_update(&h, client", "protocol"),
    place("common/proto/protocol.c", 'return pl_error_set(err, r, "a line of the peer was changed on its way");', "return 0;", "daemon-encrypt"),
    # S5
    place("common/proto/protocol.c", "sodium_memcmp(banner->tag, want, sizeof(want) - 1) == 0", "sodium_memcmp(banner->tag, want, 2) == 0", "protocol"),
    # S6
    place("common/proto/protocol.c", "#include <sodium.h>", "#include <sodium.h>\n#if 0\n#include <munge.h>\n#endif", "layers"),
    place("meson.build", "plrund = executable('plrund', plrund_main, ", "plrund = executable('plrund', plrund_main, link_args: ['-Wl,--no-as-needed', '-l:libmunge.so.2'], ", "layers"),
    # S9
    place("common/base/trace.c", 'quote ? p + 1 : "?", quote ? (size_t)(quote - p - 1) : 1, ', "line, len, ", "daemon-rank"),
    place("runtime/plrund/daemon/daemon.c", "r = pl_key_load(d->step.run_dir, d->secret, err);",
          'r = pl_key_load(d->step.run_dir, d->secret, err); char hex[65]; for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", d->secret[i]); setenv("K", hex, 1);', "daemon-rank"),
    # S11
    place("common/base/term.c", "< 0 || !pl_utf8_hidden(c)))", "< 0 || c > 0x9f))", "term"),
    place("common/base/log.c", "} else if (pl_utf8_hidden(c)) {", "} else if (c < 0x20) {", "log"),
    # S13
    place("launcher/plsubmit/script.c", '"0123456789_.,:/+@%=*[]-")]', '"0123456789_.,:/+@%=*[]-$;")]', "script"),
    place("launcher/plsubmit/script.c", "        if (*s == '\\n')\n            r = -EINVAL;\n        else\n", "", "script"),
    # S14
    place("common/run/run_trial.c", "r = value ? pl_buf_adds(&out, value) : -EINVAL;", "r = value ? pl_buf_addf(&out, value) : -EINVAL;", "plsubmit.bats"),
    # S16
    place("spank_plugin/conf.c", "#include <string.h>", "#include <string.h>\n#if 0\n#include <jansson.h>\n#endif", "layers"),
    place("spank_plugin/spank_plume.map", "    local:\n        *;\n", "", "spank.bats"),
    place("common/base/metric_rule.c", "        m->too_deep = true;\n", "        ;\n", "metric_rule"),
    # S19
    place("common/proto/json.c", "json_set_alloc_funcs(allocate, free);", "json_set_alloc_funcs(allocate, free);\n    json_object_seed(1);", "json"),
    # S21
    place("common/base/parse.c", "if (__builtin_mul_overflow(v, 10, &v) ||\n            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))",
          "if ((v = v * 10 + (uint64_t)(*s - '0')) == 0 && false)", "parse"),
    place("common/base/buf.c", "if (__builtin_add_overflow(buf->len, extra, &need) || need > SIZE_MAX / 2)", "if ((need = buf->len + extra) == 0 && false)", "buf"),
    place("runtime/engine/device/tensor.c", "if (__builtin_mul_overflow(count, shape[i], &count) || count > SIZE_MAX / 16)", "if ((count *= shape[i]) > SIZE_MAX / 16)", "engine_device"),
    place("common/proto/protocol.c", "return pl_sealed_line_size(PL_FRAME_MAX - MAC_HEX - 2);", "return pl_sealed_line_size(2 * PL_FRAME_MAX);", "sealed"),
    # S24
    place("launcher/slurm/slurm_compat.c", "slurm_load_job_user(&msg, (uint32_t)uid, SHOW_ALL)", "slurm_load_jobs((time_t)0, &msg, SHOW_ALL)", "hostile.bats"),
    # S25
    place("runtime/plrund/hub/hub.c", "return rank >= 0 && rank < hub->step->ntasks;", "return rank >= 0;", "daemon-clients"),
    # signals: who sent one, who gets it, and what becomes of a trial that stops
    place("common/run/run_stopped.c", "(strlen(number) == len && memcmp(number, name, len) == 0)", "memcmp(number, name, PL_MIN(len, strlen(number))) == 0", "trial_finish"),
    place("runtime/plrun/trial_finish.c", "    if (ended && kind == PL_CAUSE_CANCELLED)\n        return;\n", "", "trial_finish"),
    place("runtime/plrun/trial_finish.c", "        signal(SIGTERM, SIG_DFL); /* and", "        /* and", "trial_finish"),
    place("runtime/plrun/senders.c", "        sigdelset(&s->missed, sig);\n", "", "senders"),
    place("runtime/plrun/senders.c", 'return strstr(path, "/step_") || ', "return ", "senders"),
    place("runtime/plrund/daemon/starter_proof.c", "return is_of_a_rank(rank->daemon, (pid_t)pid) || ", "return ", "daemon-signals"),
    place("runtime/plrund/hub/hub.c", "hub->got_sigterm |= m->signal == SIGTERM;", "hub->got_sigterm = true;", "daemon-plume-py"),
    place("runtime/plrund/hub/ending.c", "    hub->terminated_ns = pl_now_ns();\n    expect_soon(hub, COME_MS);\n", "    hub->terminated_ns = pl_now_ns();\n", "daemon-nodes"),
    place("runtime/engine/train/fit.c", "else if (pl_trainer_signal(t) == SIGTERM)", "else", "stop"),
    # clocks, and file systems of other hosts
    place("runtime/plrund/hub/journal.c", "return hub->started + (double)(pl_now_ns() - hub->started_ns) / 1e9;", "return pl_wall_s();", "daemon-clients"),
    place("runtime/plrund/daemon/capture.c", "(data->len || f->work.skipped);", "data->len;", "late_lines"),
    place("runtime/plrund/daemon/daemon_output.c", "(1 + d->step.ntasks / SENDS_MAX) == 0;", "2 == 0;", "late_lines"),
    place("runtime/plrund/hub/log_file.c", "log->unsent = log->unsent || done;", "log->unsent = done;", "late_lines"),
    # what users are told, and what plsubmit records
    place("launcher/plstat/doctor.c", "fmax(before_s - time_s, time_s - after_s)", "time_s - after_s", "doctor"),
    place("launcher/plsubmit/update.c", "(bytes + (1u << 20) - 1) >> 20", "bytes >> 20", "change"),
    place("common/run/run_new.c", "arg[2 + len] == '=';", "true;", "change"),
    # numbers at 0, and far from it
    place("kernels/cpu/binary.c", "EACH(da[i] += dy[i] / one);", "EACH(da[i] += dy[i] * (1 / one));", "binary"),
    place("runtime/engine/ops/op_batchnorm.c", "bool lost = c->k->real == PL_REAL_F64;", "bool lost = false;", "engine_ops_nn"),
    place("runtime/engine/xla/lower_element.c", 'pl_hlo_compare(h, "LE", x, zero), zero, dy)', 'pl_hlo_compare(h, "LT", x, zero), zero, dy)', "graphs-xla-huge"),
    # the job script
    place("launcher/plsubmit/script.c", "srun --kill-on-bad-exit=0 ", "srun ", "golden"),
]
