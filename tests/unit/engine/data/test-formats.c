/* SPDX-License-Identifier: MIT */
/* Data files: what is read of each format, and what is said of files that are wrong. */
#include "common/base/fs.h"
#include "runtime/engine/data/data_find.h"
#include "runtime/engine/data/open.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static char dir[64];

/* Parses a copy that ends where the bytes end, for ASan; the copy stays until the test ends. */
static int parse(const struct plume_source *source,
                 const void *bytes,
                 size_t len,
                 struct plume_array *ret,
                 struct pl_error *err)
{
    void *copy = test_malloc(len + !len);

    memcpy(copy, bytes, len);
    *err = (struct pl_error){0};
    int r = pl_array_parse(copy, len, source, ret, err);

    if (r < 0 || ret->own) {
        test_free(copy);
        return r;
    }
    ret->own = malloc(len + !len); /* so that close frees it */
    memcpy(ret->own, copy, len);
    ret->data = (char *)ret->own + ((const char *)ret->data - (char *)copy);
    test_free(copy);
    return r;
}

static void
refused(const struct plume_source *source, const void *bytes, size_t len, const char *word)
{
    struct plume_array a;
    struct pl_error err;

    assert_true(parse(source, bytes, len, &a, &err) < 0);
    if (!strstr(err.text, word))
        fail_msg("'%s' has no '%s'", err.text, word);
}

static int32_t i32(const struct plume_array *a, size_t i)
{
    int32_t value;

    memcpy(&value, (const char *)a->data + 4 * i, 4);
    return value;
}

static double f64(const struct plume_array *a, size_t i)
{
    double value;

    memcpy(&value, (const char *)a->data + 8 * i, 8);
    return value;
}

static void test_idx(void **state)
{
    static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0,
                                           1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6};
    static const unsigned char i16[] = {0, 0, 0x0b, 1, 0, 0, 0, 3, 0x01, 0x02, 0xff, 0xfe, 0x80, 0};
    static const unsigned char f8[] = {0, 0, 0x0e, 1, 0, 0, 0, 1, 0xc0, 0x08, 0, 0, 0, 0, 0, 0};
    static const unsigned char huge[] = {0,   0,   8,   3,   255, 255, 255, 255,
                                         255, 255, 255, 255, 255, 255, 255, 255};
    struct plume_source idx = {.format = PLUME_FORMAT_IDX};
    struct pl_error err;
    struct plume_array a;

    assert_int_equal(parse(&idx, images, sizeof(images), &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_U8);
    assert_int_equal(a.rank, 3);
    assert_int_equal(a.shape[0], 2);
    assert_int_equal(a.shape[2], 3);
    assert_int_equal(a.stride, 3);
    assert_int_equal(((const uint8_t *)a.data)[5], 6);
    pl_array_close(&a);
    assert_int_equal(parse(&idx, i16, sizeof(i16), &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(i32(&a, 0), 258);
    assert_int_equal(i32(&a, 1), -2);
    assert_int_equal(i32(&a, 2), -32768);
    pl_array_close(&a);
    assert_int_equal(parse(&idx, f8, sizeof(f8), &a, &err), 0);
    assert_true(f64(&a, 0) == -3);
    pl_array_close(&a);
    idx.begin = 0.5;
    assert_int_equal(parse(&idx, images, sizeof(images), &a, &err), 0);
    assert_int_equal(a.shape[0], 1);
    assert_int_equal(a.count, 3);
    assert_int_equal(((const uint8_t *)a.data)[0], 4);
    pl_array_close(&a);
    idx.begin = 0;
    refused(&idx, "\0\0\10\2\200\0\0\0\0\0\0\0", 12, "2147483648 samples have no elements");
    refused(&idx, "", 0, "not an IDX file");
    refused(&idx, "\0\0\10\0", 4, "of 0 dimensions");
    refused(&idx, "\0\0\7\1\0\0\0\1x", 9, "type 0x07");
    refused(&idx, images, 10, "header is truncated");
    refused(&idx, images, sizeof(images) - 1, "5 bytes of data, not 6");
    refused(&idx, huge, sizeof(huge), "too large");
    idx.begin = 0.7;
    idx.end = 0.2;
    refused(&idx, images, sizeof(images), "of the samples is not within");
}

static void test_cifar10(void **state)
{
    static unsigned char file[2 * 3073];
    struct plume_source source = {.format = PLUME_FORMAT_CIFAR10};
    struct pl_error err;
    struct plume_array a;

    file[0] = 9;
    file[3073] = 3;
    file[3073 + 3072] = 77; /* the last blue pixel of sample 1 */
    assert_int_equal(parse(&source, file, sizeof(file), &a, &err), 0);
    assert_int_equal(a.rank, 4);
    assert_int_equal(a.count, 2 * 3072);
    assert_int_equal(((const uint8_t *)a.data)[a.stride + 3071], 77);
    pl_array_close(&a);
    source.field = 1;
    assert_int_equal(parse(&source, file, sizeof(file), &a, &err), 0);
    assert_int_equal(a.rank, 1);
    assert_int_equal(((const uint8_t *)a.data)[a.stride], 3);
    pl_array_close(&a);
    source.begin = 0.5;
    assert_int_equal(parse(&source, file, sizeof(file), &a, &err), 0);
    assert_int_equal(((const uint8_t *)a.data)[0], 3);
    pl_array_close(&a);
    source.begin = 0;
    refused(&source, file, 3072, "not a multiple of 3073");
    refused(&source, file, 0, "not a multiple of 3073");
    source.field = 2;
    refused(&source, file, sizeof(file), "fields 0 and 1");
    source.field = 0;
    file[3073] = 10;
    refused(&source, file, sizeof(file), "sample 1 has label 10");
}

static uint16_t token(const struct plume_array *a, size_t sample, size_t i)
{
    uint16_t value;

    memcpy(&value, (const char *)a->data + sample * a->stride + 2 * i, 2);
    return value;
}

static void test_tokens(void **state)
{
    static const uint16_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 60000};
    struct plume_source s = {.format = PLUME_FORMAT_TOKENS_U16, .window = 3};
    struct pl_error err;
    struct plume_array a;

    assert_int_equal(parse(&s, tokens, sizeof(tokens), &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_U16);
    assert_int_equal(a.shape[0], 3); /* 0..2, 3..5, 6..8: each with one token after it */
    assert_int_equal(a.shape[1], 3);
    assert_int_equal(token(&a, 2, 2), 8);
    pl_array_close(&a);
    s.ahead = 1;
    assert_int_equal(parse(&s, tokens, sizeof(tokens), &a, &err), 0);
    assert_int_equal(a.shape[0], 3);
    assert_int_equal(token(&a, 2, 2), 60000);
    pl_array_close(&a);
    s.stride = 1; /* overlapping */
    assert_int_equal(parse(&s, tokens, sizeof(tokens), &a, &err), 0);
    assert_int_equal(a.shape[0], 7);
    assert_int_equal(token(&a, 6, 2), 60000);
    pl_array_close(&a);
    s.begin = 0.5;
    assert_int_equal(parse(&s, tokens, sizeof(tokens), &a, &err), 0);
    assert_int_equal(a.shape[0], 2);
    assert_int_equal(token(&a, 0, 0), 6);
    pl_array_close(&a);
    s.end = 0.8;
    refused(&s, tokens, sizeof(tokens), "3 tokens are too few for a window of 3");
    s.begin = s.end = 0;
    refused(&s, tokens, 7, "cannot have 7 bytes");
    s.window = 0;
    refused(&s, tokens, sizeof(tokens), "set 'window'");
    s.window = 3;
    s.ahead = 2;
    refused(&s, tokens, sizeof(tokens), "'ahead'");
    s = (struct plume_source){.format = PLUME_FORMAT_TOKENS_U32, .window = 2};
    assert_int_equal(parse(&s, tokens, sizeof(tokens), &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(i32(&a, 1), 0x30002);
    pl_array_close(&a);
}

static void test_text(void **state)
{
    struct plume_source s = {.format = PLUME_FORMAT_TEXT, .window = 4};
    struct pl_error err;
    struct plume_array a;

    assert_int_equal(parse(&s, "banana bread", 12, &a, &err), 0);
    assert_int_equal(a.n_vocabulary, 7);
    assert_memory_equal(a.vocabulary, " abdenr", 7);
    assert_int_equal(a.shape[0], 2);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(a.vocabulary[((const uint8_t *)a.data)[i]], "banana bread"[i]);
    pl_array_close(&a);
    s.begin = 0.5; /* the vocabulary is the whole text's */
    assert_int_equal(parse(&s, "banana bread", 12, &a, &err), 0);
    assert_int_equal(a.n_vocabulary, 7);
    assert_int_equal(a.vocabulary[((const uint8_t *)a.data)[1]], 'b');
    pl_array_close(&a);
    refused(&s, "abc", 3, "too few");
}

static void test_csv(void **state)
{
    static const char table[] = "x, \"the y\" ,label\r\n1.5,2,7\r\n\r\n-3e2,\" 4\",8\n";
    struct plume_source s = {.format = PLUME_FORMAT_CSV};
    struct pl_error err;
    struct plume_array a;

    assert_int_equal(parse(&s, table, sizeof(table) - 1, &a, &err), -EINVAL);
    assert_string_equal(err.text, "line 4, column 1: ' 4' is not a number");
    s.columns = "x,label";
    assert_int_equal(parse(&s, table, sizeof(table) - 1, &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_F64);
    assert_int_equal(a.rank, 2);
    assert_int_equal(a.shape[0], 2);
    assert_int_equal(a.shape[1], 2);
    assert_true(f64(&a, 0) == 1.5 && f64(&a, 1) == 7 && f64(&a, 2) == -300);
    pl_array_close(&a);
    s.columns = "2";
    assert_int_equal(parse(&s, table, sizeof(table) - 1, &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(a.rank, 1);
    assert_int_equal(i32(&a, 1), 8);
    assert_int_equal(a.stride, 4);
    pl_array_close(&a);
    s.columns = NULL;
    assert_int_equal(parse(&s, "1,2\n3,4", 7, &a, &err), 0); /* no names */
    assert_int_equal(i32(&a, 3), 4);
    pl_array_close(&a);
    s.header = 1;
    assert_int_equal(parse(&s, "1,2\n3,4", 7, &a, &err), 0);
    assert_int_equal(a.shape[0], 1);
    pl_array_close(&a);
    refused(&s, "1,2\n", 4, "a line of names and no rows");
    s.header = -1;
    refused(&s, "a,2\n", 4, "line 1, column 0: 'a' is not a number");
    s.header = 0;
    refused(&s, "", 0, "empty");
    refused(&s, "\n\n", 2, "empty");
    refused(&s, "1,2\n3\n", 6, "line 2 has 1 columns, not 2");
    refused(&s, "1,2\n3,4,5\n", 10, "line 2 has more than 2");
    refused(&s, "1,2\n3,\n", 7, "'' is not a number");
    s.columns = "2";
    refused(&s, "1,2\n", 4, "no column '2'");
    s.columns = "a,";
    refused(&s, "a,b\n1,2\n", 8, "no column ''");
}

#define TEXT(s) s, sizeof(s) - 1

/* As the files of UCI's archive: no names, and a column of texts. */
static void test_csv_of_a_first_line_with_numbers_and_texts(void **state)
{
    struct plume_source s = {.format = PLUME_FORMAT_CSV, .columns = "0,1"};
    struct pl_error err;
    struct plume_array a;

    refused(&s, TEXT("5.1,3.5,setosa\n4.9,3,setosa\n"), "line 1 has 2 numbers and 1 other texts");
    s.columns = NULL;
    refused(&s, TEXT("5.1,,1\n4.9,3,1\n"), "line 1 has 2 numbers and 1 other texts");
    refused(&s, TEXT("2019,a,b\n4.9,3,1\n"), "line 1 has 1 numbers and 2 other texts");
    s.columns = "0,1";
    s.header = -1;
    assert_int_equal(parse(&s, TEXT("5.1,3.5,setosa\n4.9,3,setosa\n"), &a, &err), 0);
    assert_int_equal(a.shape[0], 2);
    assert_true(f64(&a, 0) == 5.1 && f64(&a, 3) == 3);
    pl_array_close(&a);
    s.header = 1;
    s.columns = "2020";
    assert_int_equal(parse(&s, TEXT("country,2019,2020\nx,1,2\n"), &a, &err), 0);
    assert_int_equal(i32(&a, 0), 2);
    pl_array_close(&a);
}

static void test_csv_quotes_and_order(void **state)
{
    static const char table[] = "\xef\xbb\xbfid,\"a, \"\"b\"\"\",c\n1,\"2\" , 3\n4,5.5,\"6\"\n";
    struct plume_source s = {.format = PLUME_FORMAT_CSV, .columns = "c,id"};
    struct pl_error err;
    struct plume_array a;

    assert_int_equal(parse(&s, table, sizeof(table) - 1, &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(i32(&a, 0), 3); /* in the order of the list */
    assert_int_equal(i32(&a, 1), 1);
    assert_int_equal(i32(&a, 2), 6);
    pl_array_close(&a);
    s.columns = "\"a, \"\"b\"\"\"";
    assert_int_equal(parse(&s, table, sizeof(table) - 1, &a, &err), 0);
    assert_true(f64(&a, 1) == 5.5);
    pl_array_close(&a);
    s.columns = "id";
    assert_int_equal(parse(&s, TEXT("id,name\n7,\"Smith, John\"\n"), &a, &err), 0);
    assert_int_equal(i32(&a, 0), 7);
    pl_array_close(&a);
    refused(&s, TEXT("id,b\n7,\"open\n"), "line 2, column 1: its quotes are wrong");
    refused(&s, TEXT("id,b\n7,\"x\"y\n"), "line 2, column 1: its quotes are wrong");
    refused(&s, TEXT("id,b\n7\0junk,2\n"), "line 2, column 0: its quotes are wrong, or");
    s.columns = "id,0";
    refused(&s, table, sizeof(table) - 1, "column '0' is chosen twice");
    s.columns = "a";
    refused(&s, TEXT("a,b,a\n1,2,3\n"), "two columns have the name 'a'");
    s.columns = "\"id";
    refused(&s, table, sizeof(table) - 1, "list of columns");
}

static void test_csv_limits(void **state)
{
    struct plume_source s = {.format = PLUME_FORMAT_CSV, .columns = "0"};
    struct pl_error err;
    struct plume_array a;
    char *line = test_malloc(2 * 4097);

    for (size_t i = 0; i < 4097; i++)
        memcpy(line + 2 * i, "1,", 2);
    assert_int_equal(parse(&s, line, 2 * 4096 - 1, &a, &err), 0);
    pl_array_close(&a);
    refused(&s, line, 2 * 4097 - 1, "line 1 has more than 4096 columns");
    memset(line, '0', 300);
    line[255] = '\n';
    assert_int_equal(parse(&s, line, 256, &a, &err), 0);
    pl_array_close(&a);
    memcpy(line, "a,b\n1,", 6);
    line[255] = '0';
    assert_int_equal(parse(&s, line, 300, &a, &err), 0); /* too long, but unused */
    pl_array_close(&a);
    s.columns = "b";
    refused(&s, line, 300, "line 2, column 1 is longer than 255 bytes");
    test_free(line);
}

static void test_synthetic(void **state)
{
    struct plume_source s = {
        .format = PLUME_FORMAT_SYNTHETIC, .samples = 1000, .rank = 2, .shape = {3, 5}, .seed = 7};
    size_t seen[10] = {0};
    uint32_t whole[15], piece[15];
    struct pl_error err = {0};
    struct plume_array a, b;
    double sum = 0;

    assert_int_equal(pl_array_open(&s, &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_F32);
    assert_int_equal(a.rank, 3);
    assert_int_equal(a.count, 15000);
    for (size_t i = 0; i < 1000; i++) {
        pl_synthetic_make(&a, i, 0, 15, whole);
        for (size_t k = 0; k < 15; k++) {
            float value;

            memcpy(&value, &whole[k], 4);
            assert_true(value >= 0 && value < 1);
            sum += value;
        }
        pl_synthetic_make(&a, i, 4, 11, piece); /* however it is cut */
        assert_memory_equal(piece, whole + 4, 11 * 4);
    }
    assert_true(sum > 7500 - 5 * 35.4 && sum < 7500 + 5 * 35.4); /* 5 sigma of 15000 uniform ones */
    s.begin = 0.5;
    assert_int_equal(pl_array_open(&s, &b, &err), 0);
    assert_int_equal(b.shape[0], 500);
    pl_synthetic_make(&b, 499, 0, 15, piece);
    assert_memory_equal(piece, whole, sizeof(whole));
    s.begin = 0;
    s.rank = 0;
    s.classes = 10;
    assert_int_equal(pl_array_open(&s, &a, &err), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(a.rank, 1);
    for (size_t i = 0; i < 1000; i++) {
        pl_synthetic_make(&a, i, 0, 1, whole);
        assert_true(whole[0] < 10);
        seen[whole[0]]++;
    }
    for (size_t i = 0; i < 10; i++)
        assert_true(seen[i] > 50 && seen[i] < 150); /* 5 sigma of 9.5 */
    s.rank = PLUME_RANK_MAX;
    assert_int_equal(pl_array_open(&s, &a, &err), -EINVAL);
    s.rank = s.samples = 0;
    assert_int_equal(pl_array_open(&s, &a, &err), -EINVAL);
    assert_string_equal(err.text, "synthetic data needs a number of samples");
}

static char *write_file(const char *name, const void *data, size_t len)
{
    char *path = pl_path_join(dir, name);

    assert_int_equal(pl_file_replace(path, data, len, 0600, NULL), 0);
    return path;
}

static void test_files(void **state)
{
    _cleanup_free_ char *b = write_file("b.txt", "bbbb", 4), *a = write_file("a.txt", "aaaa", 4);
    _cleanup_free_ char *empty = write_file("empty.csv", "", 0), *found = NULL;
    _cleanup_free_ char *link = pl_path_join(dir, "c.txt"), *both = pl_strf("%s:%s", b, a);
    _cleanup_free_ char *colon = NULL, *gzip = NULL;
    struct plume_source s = {.path = a, .window = 3};
    struct pl_error err = {0};
    enum plume_format format;
    struct plume_array array;

    assert_int_equal(symlink(a, link), 0);
    assert_int_equal(pl_array_open(&s, &array, &err), 0);
    assert_int_equal(array.n_vocabulary, 1);
    pl_array_close(&array);
    s.path = both;
    assert_int_equal(pl_array_open(&s, &array, &err), 0);
    assert_int_equal(((const uint8_t *)array.data)[0], 1); /* b */
    assert_int_equal(array.shape[0], 2);
    pl_array_close(&array);
    s.path = dir; /* a then b, the link and the empty file left out */
    s.format = PLUME_FORMAT_TEXT;
    assert_int_equal(pl_array_open(&s, &array, &err), 0);
    assert_int_equal(((const uint8_t *)array.data)[0], 0);
    assert_int_equal(array.shape[0], 2);
    pl_array_close(&array);
    colon = write_file("a.txt:b.txt", "xyxy", 4);
    gzip = write_file("zip.idx", "\x1f\x8b\x08\0", 4);
    s.path = colon; /* one file, for any name */
    s.window = 1;
    assert_int_equal(pl_array_open(&s, &array, &err), 0);
    assert_int_equal(array.n_vocabulary, 2);
    pl_array_close(&array);
    s = (struct plume_source){.path = gzip};
    assert_int_equal(pl_array_open(&s, &array, &err), -EINVAL);
    assert_non_null(strstr(err.text, "zip.idx' is compressed: unpack it by gunzip"));
    s = (struct plume_source){.path = empty};
    assert_int_equal(pl_array_open(&s, &array, &err), -EINVAL);
    s.path = "/nonexistent.npy";
    assert_int_equal(pl_array_open(&s, &array, &err), -ENOENT);
    s.path = "/";
    assert_int_equal(pl_array_open(&s, &array, &err), -EINVAL);
    assert_int_equal(pl_array_format("x/train-images-idx3-ubyte", &format, NULL), 0);
    assert_int_equal(format, PLUME_FORMAT_IDX);
    assert_int_equal(pl_array_format("x.bin", &format, &err), -EINVAL);
    setenv("PLUME_DATA_DIR", dir, 1);
    assert_int_equal(pl_data_find("b.txt:/abs", &found, NULL), 0);
    assert_true(strncmp(found, b, strlen(b)) == 0);
    assert_string_equal(found + strlen(b), ":/abs");
    free(found);
    assert_int_equal(pl_data_find("a.txt:b.txt", &found, NULL), 0);
    assert_string_equal(found, colon);
    free(PL_TAKE(found));
    assert_int_equal(pl_data_find("b.txt:none.txt", &found, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no data file 'none.txt' in /tmp/"));
}

static int make_dir(void **state)
{
    return tmpdir_make(dir, sizeof(dir));
}

static int remove_dir(void **state)
{
    return tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx),
        cmocka_unit_test(test_cifar10),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_csv_of_a_first_line_with_numbers_and_texts),
        cmocka_unit_test(test_csv_quotes_and_order),
        cmocka_unit_test(test_csv_limits),
        cmocka_unit_test(test_synthetic),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
