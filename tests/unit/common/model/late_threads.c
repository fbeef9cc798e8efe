/* Tasks for all threads and for some in turn, very short ones: a thread that comes late from one kind
   meets the other. Counts the parts that were done by a thread which a task was not for. */

#include "workers.h"

#include <stdatomic.h>
#include <stdio.h>

#define ALL 5
#define SOME 3
#define ROUNDS 3000
#define IN_A_ROW 30

static atomic_long done, others;

static void task(void *what, Part part)
{
    atomic_fetch_add(&done, 1);
    if (part.thread >= *(int *)what)
        atomic_fetch_add(&others, 1);
}

int main(void)
{
    int kinds[] = {ALL, SOME};
    Workers *workers = workers_start(ALL);
    if (!workers)
        return 1;
    for (int i = 0; i < ROUNDS; i++)
        for (int kind = 0; kind < 2; kind++)
            for (int k = 0; k < IN_A_ROW; k++)
                workers_run_parts(workers, kinds[kind], 8, task, &kinds[kind]);
    workers_stop(workers);
    printf("%ld %ld\n", atomic_load(&done), atomic_load(&others));
    return 0;
}
