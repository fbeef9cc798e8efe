/* The likeliest tokens of rows, and several passes in one call that follow them. */

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "pick.h"
#include "vector.h"

/* What rows have behind them, and the batch that goes on with those that have not ended. */
typedef struct {
    long alive;
    int64_t *rows;       /* [alive]: of those there were */
    float *right;        /* [W]: what the chances of all tokens that count multiply to */
    int64_t *seen;       /* [W]: positions a row sees, itself included */
    int64_t *ids, *order, *starts, *positions, *lengths, *tails; /* of the batch, [alive] and one */
    const int64_t **tables;
    int64_t *places;     /* [W, longest] */
    long longest;
} Course;

#define WORDS_OF_ROW 10 /* that a course has beside places */

/* The run of a row, and how many positions the row sees. */
static long run_of(const Batch *batch, long row, int64_t *seen)
{
    for (long run = 0; run < batch->runs; run++)
        for (long at = batch->starts[run]; at < batch->starts[run + 1]; at++)
            if (batch->ordered[at] == row) {
                *seen = batch->positions[run] + at - batch->starts[run] + 1;
                return run;
            }
    return -1; /* never: each row stands in a run */
}

/* Lays a course out in room for `W (longest + WORDS_OF_ROW) + 2` words. */
static Course started(const Batch *batch, long levels, const int64_t *slots, const Ends *ends,
                      long longest, int64_t *words)
{
    long rows = batch->wanted_rows;
    Course course = {.alive = rows, .longest = longest, .rows = words, .seen = words + rows};
    course.ids = course.seen + rows;
    course.order = course.ids + rows;
    course.starts = course.order + rows;
    course.positions = course.starts + rows + 1;
    course.lengths = course.positions + rows;
    course.tails = course.lengths + rows;
    course.tables = (const int64_t **)(course.tails + rows + 1);
    course.right = (float *)(course.tables + rows);
    course.places = words + rows * WORDS_OF_ROW + 2;
    for (long i = 0; i < rows; i++) {
        long run = run_of(batch, batch->wanted[i], course.seen + i);
        int64_t *places = course.places + i * longest;
        for (long position = 0; position < course.seen[i]; position++)
            places[position] = slot_of(batch, run, position);
        for (long level = 0; level < levels; level++)
            places[course.seen[i] + level] = slots[level * rows + i];
        course.rows[i] = course.order[i] = course.starts[i] = i;
        course.tails[i] = 0;
        course.right[i] = ends ? ends->right[i] : 1.0f;
    }
    course.starts[rows] = rows;
    course.tails[rows] = 0;
    return course;
}

/* Finds the likeliest tokens of every row, and how far their logits are behind the largest. */
static void rank(const Course *course, const float *logits, long vocab, long best, int64_t *chosen,
                 float *behind)
{
    for (long i = 0; i < course->alive; i++, logits += vocab) {
        int64_t *ids = chosen + course->rows[i] * best;
        float *gaps = behind + course->rows[i] * best;
        pick(logits, vocab, best, ids);
        for (long place = 0; place < best; place++)
            gaps[place] = logits[ids[0]] - logits[ids[place]];
    }
}

/* Takes rows out that have gone far enough. */
static void end(Course *course, const Ends *ends, long level, long best, const float *behind)
{
    long alive = 0;
    for (long i = 0; i < course->alive; i++) {
        long row = course->rows[i], range = 0, token = ends->tokens[row] + level;
        if (token >= 0) {
            while (range + 1 < ends->ranges && ends->bounds[range] <= behind[row * best + 1])
                range++;
            course->right[row] *= ends->chances[range];
            const float *least = ends->least + row * ends->longest;
            if (course->right[row] < least[token < ends->longest ? token : ends->longest - 1])
                continue;
        }
        course->rows[alive++] = row;
    }
    course->alive = alive;
}

/* Lays out the pass after a level. */
static Batch further(const Course *course, const Batch *batch, long level, long best,
                     const int64_t *chosen)
{
    for (long i = 0; i < course->alive; i++) {
        long row = course->rows[i];
        course->ids[i] = chosen[row * best];
        course->positions[i] = course->seen[row] + level;
        course->lengths[i] = course->positions[i] + 1;
        course->tables[i] = course->places + row * course->longest;
    }
    return (Batch){.rows = course->alive, .wanted_rows = course->alive, .runs = course->alive,
                   .ids = course->ids, .ordered = course->order, .starts = course->starts,
                   .positions = course->positions, .tables = course->tables,
                   .lengths = course->lengths, .tails = course->tails, .wanted = course->order,
                   .logits = batch->logits, .states = batch->states};
}

/* Whether something can be read from a descriptor. */
static int has_news(int descriptor)
{
    struct pollfd asked = {.fd = descriptor, .events = POLLIN};
    return descriptor >= 0 && poll(&asked, 1, 0) > 0;
}

int decoder_roll(Decoder *decoder, const Model *model, const Request *request, const Ends *ends,
                 int news, long best, const int64_t *slots, int64_t *chosen, float *behind,
                 long *levels)
{
    Batch batch = batch_of(request), next;
    long rows = batch.wanted_rows, longest = 0, most = *levels;
    batch.likeliest = NULL; /* they are ranked below */
    int status = run_batch(decoder, model, &batch);
    if (status)
        return status;
    for (long i = 0; i < rows; i++) {
        int64_t seen = 0;
        run_of(&batch, batch.wanted[i], &seen);
        longest = seen + most > longest ? seen + most : longest;
    }
    int64_t *words = malloc((rows * (longest + WORDS_OF_ROW) + 2) * sizeof *words);
    if (!words)
        return OUT_OF_MEMORY;
    Course course = started(&batch, most, slots, ends, longest, words);
    for (long i = 0; i < (most + 1) * rows * best; i++)
        chosen[i] = -1;
    for (*levels = 0; !status; ++*levels) {
        rank(&course, batch.logits, model->head.out, best, chosen, behind);
        if (ends)
            end(&course, ends, *levels, best, behind);
        if (*levels == most || !course.alive || has_news(news))
            break;
        next = further(&course, &batch, *levels, best, chosen);
        status = run_batch(decoder, model, &next);
        chosen += rows * best;
        behind += rows * best;
    }
    free(words);
    return status;
}

void decoder_top(const float *logits, long rows, long size, long best, int64_t *ids, float *chances)
{
    for (long row = 0; row < rows; row++, logits += size, ids += best, chances += best) {
        Floats sum = every(0.0f);
        pick(logits, size, best, ids);
        Floats most = every(logits[ids[0]]);
        for (long at = 0; at < size; at += LANES) {
            Lanes mask = first_lanes(size - at);
            sum = sum + only(mask, exp_of(load(mask, logits + at) - most));
        }
        float total = sum_of(sum);
        for (long rank = 0; rank < best; rank++)
            chances[rank] = expf(logits[ids[rank]] - logits[ids[0]]) / total;
    }
}
