/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/where.h"
#include "common/base/near.h"
#include "common/base/parse.h"
#include "common/run/run_folder.h"

#include <math.h>
#include <string.h>

#define NODES_MAX 1000
#define DEPTH_MAX 100

enum op {
    OP_OR,
    OP_AND,
    OP_NOT,
    OP_EQ,
    OP_NE,
    OP_LE,
    OP_GE,
    OP_LT,
    OP_GT,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MOD,
    OP_NEG,
    OP_NUMBER,
    OP_TEXT,
    OP_AXIS
};

/* By op, up to OP_MOD; a longer one before its beginning. */
static const char *const signs[] = {
    "||", "&&", "!", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%"};

struct node {
    enum op op;
    unsigned a, b; /* operands; a: axis */
    double number;
    char *text;
};

struct where {
    const struct pl_grid *grid;
    const char *expr, *at;
    struct node *nodes;
    unsigned n, depth;
    struct pl_error *err;
};

enum kind { KIND_NUMBER, KIND_TEXT, KIND_TRUTH };

struct value {
    enum kind kind;
    double number;    /* of a truth: 0 or 1 */
    const char *text; /* of an axis, a number too; NULL: none */
};

static void finish(struct where *w)
{
    for (unsigned i = 0; i < w->n; i++)
        free(w->nodes[i].text);
    free(w->nodes);
}

/* ---- parsing: each function returns the index of its node, or a negative errno ---- */

static int parse_or(struct where *w);

static int refuse(struct where *w, const char *what)
{
    return pl_error_set(w->err, -EINVAL, "'%.200s', character %d: %s", w->expr,
                        (int)(w->at - w->expr) + 1, what);
}

static void skip(struct where *w)
{
    w->at += strspn(w->at, " \t");
}

static int add(struct where *w, struct node node)
{
    if (w->n == NODES_MAX) {
        free(node.text);
        return refuse(w, "the condition is too long");
    }
    w->nodes[w->n] = node;
    return (int)w->n++;
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
}

/* Takes the word or the sign of an op. */
static bool take(struct where *w, enum op op)
{
    static const char *const words[] = {[OP_OR] = "or", [OP_AND] = "and", [OP_NOT] = "not"};
    const char *word = op <= OP_NOT ? words[op] : NULL;
    size_t len = word ? strlen(word) : 0;

    skip(w);
    if (word && strncmp(w->at, word, len) == 0 && !is_word_char(w->at[len])) {
        w->at += len;
        return true;
    }
    len = strlen(signs[op]);
    if (strncmp(w->at, signs[op], len) != 0 || (op == OP_NOT && w->at[1] == '='))
        return false;
    w->at += len;
    return true;
}

/* One level of operators that group from the left. */
static int parse_level(struct where *w, int (*below)(struct where *), enum op first, enum op last)
{
    int left = below(w);

    while (left >= 0) {
        enum op op = first;
        int right;

        while (op <= last && !take(w, op))
            op++;
        if (op > last)
            return left;
        right = below(w);
        left =
            right < 0 ? right : add(w, (struct node){op, (unsigned)left, (unsigned)right, 0, NULL});
    }
    return left;
}

static int find_axis(struct where *w, const char *name)
{
    struct pl_near near = {.word = name};

    for (size_t i = 0; i < w->grid->n_axes; i++) {
        if (strcmp(w->grid->axes[i].name, name) == 0)
            return add(w, (struct node){OP_AXIS, (unsigned)i, 0, 0, NULL});
        pl_near_offer(&near, w->grid->axes[i].name);
    }
    return pl_error_set(
        w->err, -EINVAL, "'%.200s': there is no axis '%.100s': %s%s%s", w->expr, name,
        near.best ? "did you mean " : "name one of the grid, or write a text in quotes",
        near.best ? near.best : "", near.best ? "?" : "");
}

static int parse_axis(struct where *w, size_t len)
{
    _cleanup_free_ char *name = strndup(w->at, len);
    int r = name ? find_axis(w, name) : pl_error_nomem(w->err);

    w->at += len;
    return r;
}

static int parse_number(struct where *w)
{
    struct node node = {.op = OP_NUMBER};
    _cleanup_free_ char *text = NULL;
    size_t len = 0;

    while (is_word_char(w->at[len]) || (len && (w->at[len] == '+' || w->at[len] == '-') &&
                                        (w->at[len - 1] == 'e' || w->at[len - 1] == 'E')))
        len++;
    text = strndup(w->at, len);
    if (!text)
        return pl_error_nomem(w->err);
    if (pl_parse_double(text, &node.number, NULL) < 0)
        return refuse(w, "this is not a number");
    w->at += len;
    return add(w, node);
}

static int parse_text(struct where *w)
{
    const char *end = strchr(w->at + 1, *w->at);
    struct node node = {.op = OP_TEXT};

    if (!end)
        return refuse(w, "the closing quote is missing");
    node.text = strndup(w->at + 1, (size_t)(end - w->at) - 1);
    if (!node.text)
        return pl_error_nomem(w->err);
    w->at = end + 1;
    return add(w, node);
}

/* Inside of brackets: what a nested condition or a name in braces is. */
static int parse_inside(struct where *w)
{
    char close = *w->at == '(' ? ')' : '}';
    int r;

    w->at++;
    r = close == ')' ? parse_or(w) : parse_axis(w, strcspn(w->at, "}"));
    if (r < 0)
        return r;
    skip(w);
    if (*w->at != close)
        return refuse(w, close == ')' ? "expected ), or an operator before" : "expected }");
    w->at++;
    return r;
}

static int parse_atom(struct where *w)
{
    size_t len = 0;

    skip(w);
    if (*w->at == '(' || *w->at == '{')
        return parse_inside(w);
    if (*w->at == '\'' || *w->at == '"')
        return parse_text(w);
    if ((*w->at >= '0' && *w->at <= '9') || *w->at == '.')
        return parse_number(w);
    while (is_word_char(w->at[len]))
        len++;
    return len ? parse_axis(w, len)
               : refuse(w, *w->at ? "expected a number, a text in quotes or an axis"
                                  : "the condition ends too early");
}

/* A sign before something that `below` parses. */
static int parse_prefix(struct where *w, enum op sign, enum op op, int (*below)(struct where *))
{
    int r;

    if (!take(w, sign))
        return below(w);
    if (++w->depth > DEPTH_MAX)
        return refuse(w, "the condition is nested too deep");
    r = parse_prefix(w, sign, op, below);
    w->depth--;
    return r < 0 ? r : add(w, (struct node){op, (unsigned)r, 0, 0, NULL});
}

static int parse_sign(struct where *w)
{
    return parse_prefix(w, OP_SUB, OP_NEG, parse_atom);
}

static int parse_product(struct where *w)
{
    return parse_level(w, parse_sign, OP_MUL, OP_MOD);
}

static int parse_sum(struct where *w)
{
    return parse_level(w, parse_product, OP_ADD, OP_SUB);
}

static int parse_comparison(struct where *w)
{
    int left = parse_sum(w), right;
    enum op op = OP_EQ;

    if (left < 0)
        return left;
    while (op <= OP_GT && !take(w, op))
        op++;
    if (*w->at == '=' && op > OP_GT)
        return refuse(w, "write == for equal");
    if (op > OP_GT)
        return left;
    right = parse_sum(w);
    return right < 0 ? right : add(w, (struct node){op, (unsigned)left, (unsigned)right, 0, NULL});
}

static int parse_not(struct where *w)
{
    return parse_prefix(w, OP_NOT, OP_NOT, parse_comparison);
}

static int parse_and(struct where *w)
{
    return parse_level(w, parse_not, OP_AND, OP_AND);
}

static int parse_or(struct where *w)
{
    int r;

    if (++w->depth > DEPTH_MAX)
        return refuse(w, "the condition is nested too deep");
    r = parse_level(w, parse_and, OP_OR, OP_OR);
    w->depth--;
    return r;
}

static int parse(struct where *w)
{
    int root = parse_or(w);

    if (root < 0)
        return root;
    skip(w);
    if (*w->at && strchr("<>=!", *w->at))
        return refuse(w, "write and between two comparisons: 1 < x and x < 3");
    return *w->at ? refuse(w, "expected an operator, such as and, == or *") : root;
}

/* ---- evaluation ---- */

static int no_number(const struct where *w, const struct value *v)
{
    return v->kind == KIND_TRUTH
               ? pl_error_set(w->err, -EINVAL, "'%.200s': a comparison is not a number", w->expr)
               : pl_error_set(w->err, -EINVAL, "'%.200s': '%.100s' is not a number", w->expr,
                              v->text);
}

/* The remainder has the divisor's sign, as Python's has. */
static double remainder_of(double a, double b)
{
    double r = fmod(a, b);

    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int calculate(const struct where *w, enum op op, double a, double b, struct value *ret)
{
    double x = op == OP_ADD   ? a + b
               : op == OP_SUB ? a - b
               : op == OP_MUL ? a * b
               : op == OP_DIV ? a / b
                              : remainder_of(a, b);

    if (b == 0 && (op == OP_DIV || op == OP_MOD))
        return pl_error_set(w->err, -EINVAL, "'%.200s': division by zero", w->expr);
    *ret = (struct value){KIND_NUMBER, x, NULL};
    return 0;
}

static bool compare(enum op op, double a, double b)
{
    return op == OP_EQ   ? a == b
           : op == OP_NE ? a != b
           : op == OP_LT ? a < b
           : op == OP_LE ? a <= b
           : op == OP_GT ? a > b
                         : a >= b;
}

static int compare_values(const struct where *w,
                          enum op op,
                          const struct value *a,
                          const struct value *b,
                          struct value *ret)
{
    bool texts = a->kind == KIND_TEXT || b->kind == KIND_TEXT;

    if (a->kind == KIND_TRUTH || b->kind == KIND_TRUTH)
        return no_number(w, a->kind == KIND_TRUTH ? a : b);
    *ret = (struct value){KIND_TRUTH, 0, NULL};
    if (!texts)
        ret->number = compare(op, a->number, b->number);
    else if (op != OP_EQ && op != OP_NE)
        return no_number(w, a->kind == KIND_TEXT ? a : b);
    else if (!a->text || !b->text) /* the result of a calculation is no text */
        ret->number = op == OP_NE;
    else
        ret->number = (strcmp(a->text, b->text) == 0) == (op == OP_EQ);
    return 0;
}

static int evaluate(const struct where *w, unsigned node, unsigned point, struct value *ret);

/* and, or and not, of truths only; the right side counts if the left one does not decide. */
static int
evaluate_logic(const struct where *w, const struct node *n, unsigned point, struct value *ret)
{
    int r = evaluate(w, n->a, point, ret);

    if (r == 0 && ret->kind == KIND_TRUTH && n->op == OP_NOT) {
        ret->number = !ret->number;
        return 0;
    }
    if (r == 0 && ret->kind == KIND_TRUTH) {
        if ((ret->number != 0) == (n->op == OP_OR))
            return 0;
        r = evaluate(w, n->b, point, ret);
    }
    if (r == 0 && ret->kind != KIND_TRUTH)
        return pl_error_set(w->err, -EINVAL, "'%.200s': %s needs comparisons, such as lr > 0",
                            w->expr,
                            n->op == OP_NOT   ? "not"
                            : n->op == OP_AND ? "and"
                                              : "or");
    return r;
}

static int evaluate(const struct where *w, unsigned node, unsigned point, struct value *ret)
{
    const struct node *n = &w->nodes[node];
    struct value a, b = {0};
    int r;

    if (n->op == OP_NUMBER || n->op == OP_TEXT) {
        *ret = (struct value){n->op == OP_TEXT ? KIND_TEXT : KIND_NUMBER, n->number, n->text};
        return 0;
    }
    if (n->op == OP_AXIS) {
        *ret = (struct value){KIND_NUMBER, 0, pl_grid_value(w->grid, point, n->a)};
        if (pl_parse_double(ret->text, &ret->number, NULL) < 0)
            ret->kind = KIND_TEXT;
        return 0;
    }
    if (n->op <= OP_NOT)
        return evaluate_logic(w, n, point, ret);
    r = evaluate(w, n->a, point, &a);
    if (r == 0 && n->op != OP_NEG)
        r = evaluate(w, n->b, point, &b);
    if (r < 0)
        return r;
    if (n->op <= OP_GT)
        return compare_values(w, n->op, &a, &b, ret);
    if (a.kind != KIND_NUMBER || b.kind != KIND_NUMBER)
        return no_number(w, a.kind != KIND_NUMBER ? &a : &b);
    if (n->op != OP_NEG)
        return calculate(w, n->op, a.number, b.number, ret);
    *ret = (struct value){KIND_NUMBER, -a.number, NULL};
    return 0;
}

/* Keeps those of n points of which the condition is true. */
static int keep(struct where *w, unsigned *points, unsigned *n, struct pl_error *err)
{
    unsigned kept = 0;
    int root = parse(w);

    if (root < 0)
        return root;
    for (unsigned i = 0; i < *n; i++) {
        struct value value = {0};
        int r = evaluate(w, (unsigned)root, points[i], &value);

        if (r < 0)
            return r;
        if (value.kind != KIND_TRUTH)
            return pl_error_set(err, -EINVAL,
                                "'%.200s' is not a condition: compare it, as in lr > 0", w->expr);
        if (value.number != 0)
            points[kept++] = points[i];
    }
    *n = kept;
    return 0;
}

int pl_where_apply(struct pl_grid *grid, char *const *exprs, struct pl_error *err)
{
    size_t n_points = pl_grid_n_points(grid);
    _cleanup_free_ unsigned *points = NULL;
    unsigned n = (unsigned)n_points;

    if (n_points > PL_WHERE_POINTS_MAX)
        return pl_error_set(err, -E2BIG, "the grid has more than %u points", PL_WHERE_POINTS_MAX);
    points = malloc(n_points * sizeof(*points));
    if (!points)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < n; i++)
        points[i] = i;
    for (; *exprs; exprs++) {
        _cleanup_(finish) struct where w = {.grid = grid, .expr = *exprs, .at = *exprs, .err = err};
        int r;

        w.nodes = calloc(NODES_MAX, sizeof(*w.nodes));
        r = w.nodes ? keep(&w, points, &n, err) : pl_error_nomem(err);
        if (r < 0)
            return r;
    }
    if (n == 0)
        return pl_error_set(err, -EINVAL, "no trial of %zu is left", n_points);
    grid->kept = PL_TAKE(points);
    grid->n_kept = n;
    return 0;
}
