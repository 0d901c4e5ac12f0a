/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/notes.h"

#include <stdarg.h>
#include <string.h>

void pl_notes_finish(struct pl_notes *notes)
{
    json_decref(notes->list);
    *notes = (struct pl_notes){0};
}

void pl_notes_add(struct pl_notes *notes, bool partial, const char *fmt, ...)
{
    char text[PL_ERROR_TEXT_MAX];
    json_t *line, *known;
    va_list args;
    size_t i;

    notes->partial |= partial;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    line = json_string(text);
    if (!line) /* the text is not valid UTF-8 */
        line = json_string("cannot read a file whose name is not valid UTF-8");
    if (!notes->list)
        notes->list = json_array();
    json_array_foreach (notes->list, i, known) {
        if (json_equal(known, line)) {
            json_decref(line);
            return;
        }
    }
    json_array_append_new(notes->list, line);
}
