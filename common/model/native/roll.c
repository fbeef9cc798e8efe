/* Several passes in one call, which follow the best tokens of rows. */

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "guess.h"
#include "pick.h"

/* What rows have behind them, and the batch that goes on with those that have not ended. */
typedef struct {
    long alive;
    int64_t *rows;       /* [alive]: of those there were */
    float *right;        /* [W]: what the chances of all tokens that count multiply to */
    float guessed;       /* chances of all tokens that a head has guessed, and one of each row */
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

/* Lays a course out in room for `W (longest + WORDS_OF_ROW) + 2` words; `step` slots to a level. */
static Course started(const Batch *batch, long levels, const int64_t *slots, long step,
                      const Ends *ends, long longest, int64_t *words)
{
    long rows = batch->wanted_rows;
    Course course = {.alive = rows, .guessed = rows, .longest = longest, .rows = words,
                     .seen = words + rows};
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
            places[course.seen[i] + level] = slots[level * step + i];
        course.rows[i] = course.order[i] = course.starts[i] = i;
        course.tails[i] = 0;
        course.right[i] = ends ? ends->right[i] : 1.0f;
    }
    course.starts[rows] = rows;
    course.tails[rows] = 0;
    return course;
}

/* Finds the tokens with the best scores of every row, and how far those are behind the best, or
   how likely they are where a head guesses; whether all of it is sure.

   scores: [best]; room: as `draw` wants it, or `guess`. */
static int rank(const Course *course, const Model *model, const Rolling *how, long level,
                const float *logits, int64_t *chosen, float *behind, double *scores, float *room)
{
    int sure = 1;
    long vocab = model->head.out;
    for (long i = 0; i < course->alive; i++, logits += vocab) {
        long row = course->rows[i];
        int64_t *ids = chosen + row * how->best;
        float *gaps = behind + row * how->best;
        Drawing drawing = {.adjusting = NULL};
        if (how->drawings) {
            drawing = how->drawings[row];
            drawing.position += level;
        }
        if (how->guessing) {
            guess(model, how->guessing->ids, how->drawings ? &drawing : NULL, how->best, logits,
                  ids, gaps, scores, room);
        } else if (how->drawings) {
            if (!draw(logits, vocab, &drawing, how->best, ids, scores, room))
                ids[0] = -1;
            sure &= ids[0] >= 0;
            for (long place = 0; place < how->best; place++)
                gaps[place] = ids[place] < 0 ? INFINITY : (float)(scores[0] - scores[place]);
        } else {
            pick(logits, vocab, how->best, ids);
            for (long place = 0; place < how->best; place++)
                gaps[place] = logits[ids[0]] - logits[ids[place]];
        }
        if (drawing.adjusting)
            drawing.adjusting->path[drawing.adjusting->steps++] = ids[0];
    }
    return sure;
}

/* Whether a row has gone far enough with a token. */
static int far_enough(const Course *course, const Ends *ends, long row, long level, float gap)
{
    long range = 0, token = ends->tokens[row] + level;
    if (token < 0)
        return 0;
    while (range + 1 < ends->ranges && ends->bounds[range] <= gap)
        range++;
    course->right[row] *= ends->chances[row * ends->ranges + range];
    const float *least = ends->least + row * ends->longest;
    return course->right[row] < least[token < ends->longest ? token : ends->longest - 1];
}

/* Whether a row's text ends with a token. */
static int is_over(const Limits *limits, long row, long level, int64_t token)
{
    if (level + 1 >= limits->tokens[row])
        return 1;
    for (long at = limits->starts[row]; at < limits->starts[row + 1]; at++)
        if (limits->stops[at] == token)
            return 1;
    return 0;
}

/* Whether a head may go on from its guess, of such a chance, for a row. */
static int is_likely(Course *course, const Guessing *guessing, long row, long level, float chance)
{
    float part = chance * guessing->factors[row * guessing->longest + level];
    float right = course->right[row] *= part > 1 ? 1 : part; /* not of NaN */
    course->guessed += right;
    return level + 1 < guessing->tokens[row] && right >= guessing->least;
}

/* Whether another level of a head's guesses is worth it. */
static int pays(const Course *course, const Guessing *guessing, long level)
{
    float sum = 0;
    for (long i = 0; i < course->alive; i++)
        sum += course->right[course->rows[i]];
    float price = guessing->prices[level] + course->alive * guessing->row_prices[level];
    return sum > course->guessed * price;
}

/* Takes rows out that are over or have gone far enough, or of whose token nobody is sure. What a
   head's rows left closes up. */
static void end(Course *course, const Batch *batch, long hidden, const Rolling *how, long level,
                const int64_t *chosen, const float *behind)
{
    long alive = 0, best = how->best;
    const Guessing *guessing = how->guessing;
    for (long i = 0; i < course->alive; i++) {
        long row = course->rows[i];
        if (chosen[row * best] < 0)
            continue;
        if (how->limits && is_over(how->limits, row, level, chosen[row * best]))
            continue;
        if (how->ends && far_enough(course, how->ends, row, level, behind[row * best + 1]))
            continue;
        if (guessing && !is_likely(course, guessing, row, level, behind[row * best]))
            continue;
        if (batch->left && alive < i)
            memcpy(batch->left + alive * hidden, batch->left + i * hidden, hidden * sizeof(float));
        course->rows[alive++] = row;
    }
    course->alive = alive;
    if (guessing && !pays(course, guessing, level))
        course->alive = 0;
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
                   .large = batch->large, .ids = course->ids, .ordered = course->order,
                   .starts = course->starts, .positions = course->positions,
                   .tables = course->tables, .lengths = course->lengths, .tails = course->tails,
                   .wanted = course->order, .logits = batch->logits, .states = batch->states,
                   .given = batch->left, .left = batch->left};
}

/* Whether something can be read from a descriptor. */
static int has_news(int descriptor)
{
    struct pollfd asked = {.fd = descriptor, .events = POLLIN};
    return descriptor >= 0 && poll(&asked, 1, 0) > 0;
}

/* A request that goes on level by level: all of it, or parts that do not wait for each other. */
typedef struct {
    Decoder *decoder;
    const Model *model;
    const Rolling *how;
    const Batch *parts;   /* [count] */
    long count, rows;     /* rows: wanted ones of all parts */
    long most;            /* levels */
    const int64_t *slots; /* as for `decoder_roll`, of all parts */
    int64_t *chosen;
    float *behind;
    long *levels;         /* [count]: run for each part */
    int *status;          /* [count] */
} Roll;

/* How a part rolls whose rows begin with some row of all, with room for what that points to. */
static Rolling rolling_from(const Rolling *how, long row, Ends *ends, Limits *limits)
{
    Rolling own = *how;
    if (how->drawings)
        own.drawings += row;
    if (how->ends) {
        *ends = *how->ends;
        ends->chances += row * ends->ranges;
        ends->least += row * ends->longest;
        ends->tokens += row;
        ends->right += row;
        own.ends = ends;
    }
    if (how->limits) {
        *limits = *how->limits;
        limits->tokens += row;
        limits->starts += row;
        own.limits = limits;
    }
    return own;
}

static int run_level(const Roll *roll, const Batch *batch, int part)
{
    return roll->count > 1 ? run_alone(roll->decoder, roll->model, batch, part)
                           : run_batch(roll->decoder, roll->model, batch);
}

/* Rolls on with a part, whose rows begin with some row of all. */
static int roll_on(const Roll *roll, int part, long first)
{
    Ends ends;
    Limits limits;
    const Rolling own = rolling_from(roll->how, first, &ends, &limits);
    const Batch *batch = roll->parts + part;
    Batch next;
    const Model *model = roll->model;
    long rows = batch->wanted_rows, longest = 0;
    long vocab = model->head.out > model->vocab ? model->head.out : model->vocab;
    int status = run_level(roll, batch, part);
    if (status)
        return status;
    for (long i = 0; i < rows; i++) {
        int64_t seen = 0;
        run_of(batch, batch->wanted[i], &seen);
        longest = seen + roll->most > longest ? seen + roll->most : longest;
    }
    int64_t *words = malloc((rows * (longest + WORDS_OF_ROW) + 2) * sizeof *words);
    double *scores = malloc(own.best * sizeof *scores + 3 * vocab * sizeof(float));
    if (!words || !scores) {
        free(words);
        free(scores);
        return OUT_OF_MEMORY;
    }
    float *room = (float *)(scores + own.best), *behind = roll->behind + first * own.best;
    int64_t *chosen = roll->chosen + first * own.best;
    long level = 0;
    Course course = started(batch, roll->most, roll->slots + first, roll->rows, own.ends, longest,
                            words);
    for (; !status; level++) {
        int sure = rank(&course, model, &own, level, batch->logits, chosen, behind, scores, room);
        end(&course, batch, model->hidden, &own, level, chosen, behind);
        if (level == roll->most || !course.alive || (!sure && !level) || has_news((int)own.news))
            break;
        next = further(&course, batch, level, own.best, chosen);
        status = run_level(roll, &next, part);
        chosen += roll->rows * own.best;
        behind += roll->rows * own.best;
    }
    free(words);
    free(scores);
    roll->levels[part] = level;
    return status;
}

static void roll_part(void *what, Part part)
{
    Roll *roll = what;
    long first = 0;
    for (int i = 0; i < part.index; i++)
        first += roll->parts[i].wanted_rows;
    roll->status[part.index] = roll_on(roll, part.index, first);
}

int decoder_roll(Decoder *decoder, const Model *model, const Request *request, const Rolling *how,
                 const int64_t *slots, int64_t *chosen, float *behind, long *levels)
{
    Batch batch = batch_of(request);
    if (!in_range(model, &batch))
        return OUT_OF_RANGE;
    batch.chosen = NULL; /* they are ranked */
    int threads = threads_of(decoder, &batch), status[threads];
    long rows = batch.wanted_rows, count = 1, run[threads];
    Batch parts[threads];
    if (batch.rows == rows && !how->guessing) /* else further batches are much smaller, and parts of
                                                 them too small; a head's rows end together */
        count = parts_of(decoder, model, &batch, parts);
    else
        parts[0] = batch;
    for (long i = 0; i < (*levels + 1) * rows * how->best; i++)
        chosen[i] = -1;
    Roll roll = {.decoder = decoder, .model = model, .how = how, .parts = parts, .count = count,
                 .rows = rows, .most = *levels, .slots = slots, .chosen = chosen, .behind = behind,
                 .levels = run, .status = status};
    if (count > 1)
        run_each(decoder, count, roll_part, &roll);
    else
        roll_part(&roll, (Part){0, 1, 0});
    *levels = 0;
    for (long i = 0; i < count; i++) {
        if (status[i])
            return status[i];
        *levels = run[i] > *levels ? run[i] : *levels;
    }
    return 0;
}
