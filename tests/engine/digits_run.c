/* SPDX-License-Identifier: MIT */
#include "tests/engine/digits_run.h"
#include "tests/lib/on_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

const struct plume_hparam digits_hparams[] = {{"batch_size", "4", 1, 65536, 1, NULL}, {0}};

int digits_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 1;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    return 0;
}

void digits_train(const struct plume_module *module,
                  const struct pl_train_options *options,
                  struct pl_comm *comm,
                  struct trained *ret)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct pl_train_options own = *options; /* each rank sets its device */
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r;

    r = pl_hparams_init(&h, module->hparams, &err);
    own.device = on_device();
    if (r == 0)
        r = pl_trainer_init(&trainer, module, &h, &own, comm, &report, &err);
    if (r == 0) {
        r = pl_trainer_fit(&trainer, &err);
        memcpy(ret->hash, trainer.param_hash, sizeof(ret->hash));
        ret->steps = trainer.state.step;
        for (size_t i = 0; r == 0 && i < PL_MIN(trainer.ctx.params.n, TRAINED_VALUES); i++)
            ret->values[i] = on_device_scalar(trainer.ctx.params.list[i]->tensor);
        pl_trainer_finish(&trainer);
    }
    ret->result = r;
    if (r < 0)
        snprintf(ret->error, sizeof(ret->error), "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
}

void digits_assert_good(const struct trained *trained, unsigned ranks)
{
    for (unsigned i = 0; i < ranks; i++)
        if (trained[i].result < 0)
            fail_msg("rank %u: %s", i, trained[i].error);
}
