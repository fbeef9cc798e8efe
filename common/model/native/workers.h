/* A few threads that do one task after another together. */

#ifndef PACELINE_WORKERS_H
#define PACELINE_WORKERS_H

typedef struct Workers Workers;

typedef struct {
    int index, count; /* which of the parts */
    int thread;       /* that does it */
} Part;

typedef void Task(void *what, Part part);

/* Goes through the numbers below `all` that fall to a part. */
#define PART_OF(all) \
    for (long i = (all) * part.index / part.count, end = (all) * (part.index + 1) / part.count; \
         i < end; i++)

/* Starts threads - 1 threads: the caller is one itself. NULL where that fails. */
Workers *workers_start(int threads);

void workers_stop(Workers *workers);

/* Has some of the threads do a task; returns once all parts are done and what they wrote can be
   read. */
void workers_run(Workers *workers, int threads, Task *task, void *what);

/* The same, for a task of so many parts. */
void workers_run_parts(Workers *workers, int threads, int parts, Task *task, void *what);

#endif
