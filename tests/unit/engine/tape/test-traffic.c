/* SPDX-License-Identifier: MIT */
/* Bytes that a step of the paper models moves on a GPU, counted from the tape. */
#include "runtime/engine/tape/profile.h"
#include "tests/unit/engine/tape/paper_models.h"

static double gb(double bytes)
{
    return bytes * 1e-9;
}

/* One line per op, and the sums. */
static struct pl_traffic show(const struct model *m, const char *what)
{
    struct pl_traffic sum = {0};

    for (size_t i = 0; i < m->tape.n; i++) {
        const struct pl_node *first = &m->tape.nodes[i];
        double forward = 0, backward = 0;
        bool seen = false;

        for (size_t k = 0; k < i; k++)
            seen |= strcmp(m->tape.nodes[k].op->name, first->op->name) == 0;
        for (size_t k = i; k < m->tape.n && !seen; k++)
            if (strcmp(m->tape.nodes[k].op->name, first->op->name) == 0) {
                forward += pl_node_traffic(&m->tape.nodes[k], false).outside;
                backward += pl_node_traffic(&m->tape.nodes[k], true).outside;
            }
        if (!seen)
            print_message("# %s: %-14s %6.2f GB forward, %6.2f GB backward\n", what,
                          first->op->name, gb(forward), gb(backward));
    }
    for (int back = 0; back < 2; back++) {
        struct pl_traffic t = pl_tape_traffic(&m->tape, back);

        sum.all += t.all;
        sum.outside += t.outside;
    }
    print_message("# %s: %.2f GB, %.2f GB of them outside products and attention\n", what,
                  gb(sum.all), gb(sum.outside));
    return sum;
}

static void near(double x, double want)
{
    if (x < want - 0.005 || x > want + 0.005)
        fail_msg("%.3f GB, not %.3f: if that is meant, change the number", x, want);
}

/* Without what has a few bytes per row or column. */
static void near_share(double x, double want)
{
    if (x < 0.999 * want || x > 1.002 * want)
        fail_msg("%.0f bytes, not %.0f", x, want);
}

static void test_gpt2_moves_so_many_bytes(void **state)
{
    static struct model m;
    struct pl_traffic t;

    make(&m, SHARES | FUSES);
    t = show(&m, "GPT-2");
    near(gb(t.outside), 28.85);
    near(gb(t.all), 81.84);
    pl_tape_finish(&m.tape);
    make(&m, SHARES | FUSES | O2);
    t = show(&m, "GPT-2, O2");
    near(gb(t.outside), 21.00);
    near(gb(t.all), 73.99);
    assert_true(t.outside < 21e9); /* the goal */
    pl_tape_finish(&m.tape);
    make(&m, SHARES);
    t = show(&m, "GPT-2, each op by itself");
    near(gb(t.outside), 62.15);
    near(gb(t.all), 111.63);
    pl_tape_finish(&m.tape);
}

static double flops_of(const struct model *m, const char *op)
{
    double sum = 0;

    for (size_t i = 0; i < m->tape.n; i++)
        for (int back = 0; back < 2; back++)
            if (!op || strcmp(m->tape.nodes[i].op->name, op) == 0)
                sum += pl_node_flops(&m->tape.nodes[i], back);
    return sum;
}

/* By paper: two for each weight and token, thrice; of an attention that looks back half of its two
 * products of TIME x TIME scores, and 2.5 times as much backward, which makes the scores again. The
 * logits, which cross-entropy makes with their gradients, are products all the same. */
static void test_gpt2_does_so_many_flops(void **state)
{
    static struct model m;
    const double tokens = (double)BATCH * TIME, w = WIDTH;
    const double products = 6 * tokens * (LAYERS * 12 * w * w + w * VOCABULARY);
    const double attention = 3.5 * LAYERS * 2 * tokens * TIME * w;

    for (unsigned how = 0; how < 2; how++) {
        make(&m, SHARES | (how ? FUSES : 0));
        print_message("# GPT-2: %.3f TFLOP in products, %.3f in attention, %.3f in all\n",
                      (flops_of(&m, "linear") + how * flops_of(&m, "cross_entropy")) * 1e-12,
                      flops_of(&m, "attention") * 1e-12, flops_of(&m, NULL) * 1e-12);
        near_share(flops_of(&m, "linear") + how * flops_of(&m, "cross_entropy"), products);
        near_share(flops_of(&m, "attention"), attention);
        near_share(flops_of(&m, NULL), products + attention);
        for (size_t i = 0; i < m.tape.n; i++) /* a loss' products are all done in forward */
            assert_true(!m.tape.nodes[i].fusion.product ||
                        pl_node_flops(&m.tape.nodes[i], true) <
                            0.01 * pl_node_flops(&m.tape.nodes[i], false));
        pl_tape_finish(&m.tape);
    }
}

/* The node of that op whose output has so many columns; the first, or the last. */
static const struct pl_node *
node_of(const struct model *m, const char *op, size_t columns, bool last)
{
    const struct pl_node *found = NULL;

    for (size_t i = 0; i < m->tape.n; i++) {
        const struct pl_node *node = &m->tape.nodes[i];
        bool is =
            strcmp(node->op->name, op) == 0 && node->out->shape[node->out->rank - 1] == columns;

        if (is && (last || !found))
            found = node;
    }
    assert_non_null(found);
    return found;
}

/* Each array that each kernel reads or writes, in bf16; the weights' gradients are f32. The slope
 * of the fourth layer's gelu is in the product after it. That of the queries, keys and values has
 * no kernel for its bias. */
static void test_products_read_the_gradient_twice(void **state)
{
    static struct model m;
    const double rows = (double)BATCH * TIME, w = WIDTH;
    struct pl_traffic t;

    make(&m, SHARES | FUSES);
    t = pl_node_traffic(node_of(&m, "linear", 3 * WIDTH, false), true);
    assert_true(t.outside == 0);
    near_share(t.all, rows * (2 * 3 * w + 2 * w) * 2 + 3 * w * w * (2 + 4));
    t = pl_node_traffic(node_of(&m, "linear", 4 * WIDTH, false), true);
    assert_true(t.outside == 0);
    near_share(t.all, rows * (2 * 4 * w + 2 * w) * 2 + 4 * w * w * (2 + 4));
    pl_tape_finish(&m.tape);
}

/* Bytes of partial sums: of the norms, 396 pieces of a block of rows, of two or three arrays. */
static void test_partial_sums_are_counted(void **state)
{
    static struct model m;
    const double row = (double)BATCH * TIME * WIDTH, w = WIDTH;
    struct pl_traffic t;

    make(&m, SHARES | FUSES | O2);
    t = pl_node_traffic(node_of(&m, "layernorm", WIDTH, true), true); /* x, dy, dx in 16 bits */
    near_share(t.outside, 3 * 2 * row + 396 * 3 * w * 2 * 4);
    t = pl_node_traffic(node_of(&m, "attention", WIDTH, true), true); /* sums of dq and dy */
    near_share(t.outside, 2 * (2 * row + 176 * w * 2 * 8));
    pl_tape_finish(&m.tape);
}

/* A table with fewer rows than there are ids is read once. */
static void test_an_embedding_reads_its_table_once(void **state)
{
    static struct model model;
    struct model *m = &model;
    plume_tensor *y;

    assert_int_equal(pl_tensor_init(&m->ids, PLUME_I32, 2, (size_t[]){BATCH, TIME}), 0);
    pl_tape_init(&m->tape, &paper, PL_REAL_F32, true);
    pl_tape_begin(&m->tape);
    y = CALL(PLUME_OP_EMBEDDING, 0, 0, param(m, 100, WIDTH), &m->ids);
    pl_tape_end(&m->tape);
    assert_int_equal(pl_tape_prepare(&m->tape, &y, 1, 1, NULL), 0);
    assert_true(pl_node_traffic(&m->tape.nodes[0], false).all ==
                (double)BATCH * TIME * (4 + WIDTH * 4) + 100 * WIDTH * 4);
    pl_tape_finish(&m->tape);
}

/* Each norm does the casts around it; all but the first one the sum before it, too. So does the
 * first one, whose sum repeats the positions, if the residual stream has 16 bits. */
static void test_norms_do_what_is_around_them(void **state)
{
    static struct model m;

    for (unsigned o2 = 0; o2 < 2; o2++) {
        size_t norms = 0, sums = 0, others = 0;

        make(&m, SHARES | FUSES | (o2 ? O2 : 0));
        for (size_t i = 0; i < m.tape.n; i++) {
            const struct pl_node *node = &m.tape.nodes[i];

            norms += strcmp(node->op->name, "layernorm") == 0 && node->fusion.y != node->out;
            sums += node->at[0] != i && strcmp(node->op->name, "add") == 0;
            others += node->at[0] != i && strcmp(node->op->name, "cast") == 0;
            assert_true(node->at[0] == i || node->fusion.loss ||
                        strcmp(m.tape.nodes[node->at[0]].op->name, "layernorm") == 0);
        }
        assert_int_equal(norms, 2 * LAYERS + 1);
        assert_int_equal(sums, 2 * LAYERS + o2);
        assert_int_equal(others, o2 ? 2 * norms : norms + sums);
        pl_tape_finish(&m.tape);
    }
}

/* The logits, 3.30 GB, are nowhere as a whole, and neither is their gradient; those of the layer
 * that makes them are written where they belong. */
static void test_logits_are_never_stored_as_a_whole(void **state)
{
    static struct model m;
    size_t bytes, chunks = 0;

    make(&m, SHARES | FUSES);
    bytes = m.tape.memory_bytes;
    for (size_t i = 0; i < m.tape.n; i++) {
        const struct pl_node *node = &m.tape.nodes[i];

        if (!node->fusion.product)
            continue;
        chunks++;
        assert_int_equal(node->fusion.chunk, 8192);
        assert_null(node->in[0]->data);
        assert_null(node->in[0]->grad);
        assert_int_equal(m.tape.nodes[node->fusion.product - 1].fusion.own,
                         PL_NEEDS_IN(0) | PL_NEEDS_IN(1));
    }
    assert_int_equal(chunks, 1);
    pl_tape_finish(&m.tape);
    make(&m, SHARES | FUSES | STORES);
    near(gb((double)m.tape.memory_bytes - (double)bytes), 2.395);
    pl_tape_finish(&m.tape);
}

/* Counts a run of the tape in which each byte takes a nanosecond, which is 1 GB/s. Returns the
 * nodes that run again. */
static size_t run(struct pl_tape *tape)
{
    size_t again = 0;

    assert_int_equal(pl_profile_begin(tape, NULL), 0);
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        bool twice = tape->again && tape->again[i].before;

        again += twice;
        if (node->op->view || node->unread)
            continue;
        for (int k = 0; k < (twice ? 3 : 2); k++)
            pl_profile_add(tape, node, k == 1, (uint64_t)pl_node_traffic(node, k == 1).all,
                           (struct pl_device_calls){0});
    }
    return again;
}

/* Lines of the profile that have both shares, of the time and of the card's limits. */
static size_t lines_with_a_limit(struct pl_tape *tape, const char *op)
{
    char *text = NULL, *save = NULL;
    size_t len, n = 0;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    run(tape);
    pl_profile_print(tape, 1, 1, out);
    pl_profile_clear(tape);
    assert_int_equal(fclose(out), 0);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        n += strncmp(line, op, strlen(op)) == 0 && strchr(line, '%') != strrchr(line, '%');
    free(text);
    return n;
}

/* Each chunk rounds the gradient of the weights once more, in 16 bits: they are 8 at most, however
 * many rows there are. f32 has more. */
static void test_logits_of_many_rows_have_few_chunks(void **state)
{
    static const struct {
        size_t rows;
        bool halves;
        size_t chunk;
    } of[] = {{4096, true, 0},         {32768, true, 8192},  {50000, true, 7143},
              {65536, true, 8192},     {65544, true, 8193},  {131072, true, 16384},
              {1048576, true, 131072}, {131072, false, 8192}};
    static struct model model;
    struct model *m = &model;

    for (size_t i = 0; i < PL_COUNT(of); i++) {
        plume_tensor *x, *loss;

        memset(m, 0, sizeof(*m));
        assert_int_equal(pl_tensor_init(&m->labels, PLUME_I32, 1, (size_t[]){of[i].rows}), 0);
        pl_tape_init(&m->tape, &paper, PL_REAL_F32, true);
        m->tape.amp_dtype = of[i].halves ? PLUME_BF16 : 0;
        pl_tape_begin(&m->tape);
        x = CALL(PLUME_OP_LINEAR, 0, 0, param(m, of[i].rows, WIDTH), param(m, VOCABULARY, WIDTH));
        loss = CALL(PLUME_OP_CROSS_ENTROPY, 0, 0, x, &m->labels);
        pl_tape_end(&m->tape);
        assert_int_equal(pl_tape_prepare(&m->tape, &loss, 1, 1, NULL), 0);
        if (m->tape.nodes[loss->node].fusion.chunk != of[i].chunk)
            fail_msg("%zu rows by %zu, not by %zu", of[i].rows,
                     m->tape.nodes[loss->node].fusion.chunk, of[i].chunk);
        pl_tape_finish(&m->tape);
    }
}

/* On a card of an architecture whose peak is not in the table, bytes alone would say too little. */
static void test_products_have_no_limit_without_a_peak(void **state)
{
    static struct model m;

    make(&m, SHARES | FUSES);
    assert_int_equal(lines_with_a_limit(&m.tape, "layernorm "), 0);
    paper.limits.bytes = 1e12;
    assert_true(lines_with_a_limit(&m.tape, "layernorm ") > 0);
    assert_int_equal(lines_with_a_limit(&m.tape, "linear "), 0);
    assert_int_equal(lines_with_a_limit(&m.tape, "attention "), 0);
    paper.limits.flops[PL_REAL_BF16] = 1e14;
    assert_true(lines_with_a_limit(&m.tape, "linear ") > 0);
    assert_true(lines_with_a_limit(&m.tape, "attention ") > 0);
    paper.limits = (struct pl_device_limits){0};
    pl_tape_finish(&m.tape);
}

/* An op that backward computes again takes its time twice, and moves its bytes twice. */
static void test_what_runs_again_counts_again(void **state)
{
    static struct model m;
    char *text = NULL, *save = NULL;
    size_t len, lines = 0;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    make(&m, SHARES | RECOMPUTES);
    assert_true(run(&m.tape) > LAYERS);
    pl_profile_print(&m.tape, 1, 1, out);
    assert_int_equal(fclose(out), 0);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (strchr(line, '[') && strchr(line, '%')) {
            lines++;
            if (strcmp(strrchr(line, ' '), " 1.00") != 0 &&
                strcmp(strrchr(line, ' '), " 0.00") != 0)
                fail_msg("not 1 GB/s: %s", line);
        }
    assert_true(lines > 5);
    free(text);
    pl_tape_finish(&m.tape);
}

/* A residual sum's backward moves nothing. */
static void test_gradients_of_sums_are_not_copied(void **state)
{
    static struct model m;
    struct pl_traffic shared, copied;
    size_t sums = 0, n = (size_t)BATCH * TIME * WIDTH;

    make(&m, 0);
    copied = pl_tape_traffic(&m.tape, true);
    pl_tape_finish(&m.tape);
    make(&m, SHARES);
    shared = pl_tape_traffic(&m.tape, true);
    for (size_t i = 0; i < m.tape.n; i++) {
        const struct pl_node *node = &m.tape.nodes[i];

        if (strcmp(node->op->name, "add") != 0 || node->in[1]->is_param)
            continue;
        sums++;
        assert_true(node->alias[0] && node->alias[1]);
        assert_ptr_equal(node->in[0]->grad, node->out->grad);
        assert_ptr_equal(node->in[1]->grad, node->out->grad);
    }
    assert_int_equal(sums, 2 * LAYERS);
    /* In f32 each would read one array and write two; that of the positions has only da. */
    assert_true(copied.outside - shared.outside ==
                (double)sums * 3 * (double)n * 4 + (double)n * 4);
    pl_tape_finish(&m.tape);
}

static bool is_op(const struct pl_node *node, const char *name)
{
    return strcmp(node->op->name, name) == 0;
}

/* Kernels outside convolutions that run forward, by op. */
static size_t count(const struct model *m, const char *name)
{
    size_t n = 0;

    for (size_t i = 0; i < m->tape.n; i++)
        n += is_op(&m->tape.nodes[i], name) && pl_node_traffic(&m->tape.nodes[i], false).all > 0;
    return n;
}

/* All images have 16 bits and their channels last, and no op is a pass of its own over them but the
 * convolutions, the norms, and the pool: the last norm of a block does its sum and relu. Cast are
 * the first image, the last one (which is small) and its mean; copied the same two images, and the
 * weights of more than one place. */
static void test_resnet18_moves_so_many_bytes(void **state)
{
    static struct model m;
    size_t joined = 0, images = 0;
    struct pl_traffic t;

    make(&m, SHARES | FUSES | RESNET);
    t = show(&m, "ResNet-18");
    print_message("# ResNet-18: %.3f GB of memory\n", gb((double)m.tape.memory_bytes));
    near(gb(t.outside), 6.76);
    near(gb((double)m.tape.memory_bytes), 1.39);
    for (size_t i = 0; i < m.tape.n; i++) {
        const struct pl_node *node = &m.tape.nodes[i];
        bool large = node->out->rank == 4 && node->out->count > (size_t)IMAGES * 512 * 7 * 7;

        joined += node->fusion.r != NULL;
        if (large && node->out->data && node->out->shape[1] > 3) {
            images++;
            assert_int_equal(node->out->dtype, PLUME_BF16);
            assert_true(node->out->channels_last);
        }
    }
    assert_int_equal(joined, 8);
    assert_int_equal(images, 31);
    assert_int_equal(count(&m, "add"), 0);
    assert_int_equal(count(&m, "relu"), 0);
    assert_int_equal(count(&m, "cast"), 3);
    assert_int_equal(count(&m, "copy"), 19);
    pl_tape_finish(&m.tape);
    make(&m, SHARES | RESNET);
    near(gb(show(&m, "ResNet-18, each op by itself").outside), 20.50);
    pl_tape_finish(&m.tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_moves_so_many_bytes),
        cmocka_unit_test(test_gpt2_does_so_many_flops),
        cmocka_unit_test(test_products_read_the_gradient_twice),
        cmocka_unit_test(test_partial_sums_are_counted),
        cmocka_unit_test(test_an_embedding_reads_its_table_once),
        cmocka_unit_test(test_norms_do_what_is_around_them),
        cmocka_unit_test(test_logits_are_never_stored_as_a_whole),
        cmocka_unit_test(test_logits_of_many_rows_have_few_chunks),
        cmocka_unit_test(test_products_have_no_limit_without_a_peak),
        cmocka_unit_test(test_what_runs_again_counts_again),
        cmocka_unit_test(test_gradients_of_sums_are_not_copied),
        cmocka_unit_test(test_resnet18_moves_so_many_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
